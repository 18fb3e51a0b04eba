"""The HTTP data plane: a server, pooled upstream connections, and forwarding between."""
