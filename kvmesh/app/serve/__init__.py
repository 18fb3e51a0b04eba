"""One request's way through a router: decided, booked, forwarded, ended."""
