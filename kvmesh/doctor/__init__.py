"""`kvmesh doctor`: why an engine's cache would not be seen."""
