"""Signed messages: who said it, whether it may, and whether it is new."""
