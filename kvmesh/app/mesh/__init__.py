"""A process's part in the mesh, over NATS; and a router alone, without it."""
