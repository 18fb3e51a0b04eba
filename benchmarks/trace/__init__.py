"""What a request passes on its way through a router, counted in live runs."""
