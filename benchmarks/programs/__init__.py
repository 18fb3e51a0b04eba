"""Fleets that are too small: programs that take turns, targets, overload."""
