"""The front door: listener, TLS, keys, routes, traces."""
