"""Sick fleets: what each router loses, and how slow the served are."""
