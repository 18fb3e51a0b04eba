"""Actors of membership: who is there, what they booked, what they load."""
