"""Actors: each takes a message and answers with effects, never acting itself."""
