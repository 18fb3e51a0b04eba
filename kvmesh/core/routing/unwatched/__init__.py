"""Requests whose answers nobody sees: what shows how far they are, and that they are over."""
