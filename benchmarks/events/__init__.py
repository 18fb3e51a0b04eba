"""KV events end to end: an engine's socket, the sidecar, the journal, two replicas."""
