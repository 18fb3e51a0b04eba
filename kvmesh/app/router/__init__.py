"""`kvmesh router`: one replica of one bucket, and its cold paths."""
