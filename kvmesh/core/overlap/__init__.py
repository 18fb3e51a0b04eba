"""How much of a prompt each worker holds: by events, or by the router's own decisions."""
