"""Targets of requests: the chance to miss one, who is refused for it, and what became of them."""
