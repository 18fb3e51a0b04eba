"""The decision: candidates, cost, choice, booking, and what replicas share of it."""
