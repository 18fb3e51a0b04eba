"""How soon a replica is right again, and what a sidecar costs."""
