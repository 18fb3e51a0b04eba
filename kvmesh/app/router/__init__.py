"""`kvmesh router` and `kvmesh picker`: one replica of one bucket, its doors and cold paths."""
