"""The simulator: actors in virtual time, from a seed, through seeded faults."""
