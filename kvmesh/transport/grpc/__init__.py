"""The gRPC data plane: a server of streams over HTTP/2."""
