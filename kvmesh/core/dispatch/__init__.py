"""The one way from a request to its booked and recorded decision, and back from its answer."""
