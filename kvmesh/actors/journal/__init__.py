"""Actors of the event stream: publishers, the index, snapshots."""
