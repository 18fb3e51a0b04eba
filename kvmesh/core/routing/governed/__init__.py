"""Turns of programs in routing: the fleet that their governor sees."""
