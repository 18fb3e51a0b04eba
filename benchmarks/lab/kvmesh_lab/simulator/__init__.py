"""`kvmesh simulate`: a trace against simulated engines, policies side by side."""
