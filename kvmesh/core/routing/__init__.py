"""The decision: candidates, cost, choice, booking, and what replicas tell each other of it."""
