"""What is cached where: the index of events, what a prompt finds in it, its snapshots."""
