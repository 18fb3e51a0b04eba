"""`kvmesh replay`: a trace sent to a live endpoint, and what came back."""
