"""Weights tuned while a router runs: what its load is like, what to try, and what to keep."""
