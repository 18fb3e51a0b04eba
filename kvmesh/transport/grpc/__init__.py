"""The gRPC data plane: a server of streams over HTTP/2, compiled or by the `h2` library."""
