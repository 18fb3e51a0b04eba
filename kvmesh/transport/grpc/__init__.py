"""The gRPC data plane: a server of streams over HTTP/2, and Envoy's ext_proc messages on it."""
