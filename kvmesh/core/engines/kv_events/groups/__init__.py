"""Engines whose cache has several groups: what is held of each, and where a hit may end."""
