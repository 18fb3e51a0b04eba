"""Requests meant to keep a router busy or full, and what they cost it."""
