"""A router without NATS: its workers come from flags, files, DNS or Kubernetes."""
