"""The front door: listener, TLS, keys, routes, traces and their export."""
