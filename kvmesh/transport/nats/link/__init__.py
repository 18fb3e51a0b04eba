"""One NATS connection, and what needs nothing but it: bus and control."""
