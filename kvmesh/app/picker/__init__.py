"""`kvmesh picker`: a replica of a bucket that gateways ask where a request goes."""
