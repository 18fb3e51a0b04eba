"""`kvmesh meta-router`: one door over all buckets and replicas."""
