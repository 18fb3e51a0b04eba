"""Which site serves a request: its own, unless another would answer sooner."""
