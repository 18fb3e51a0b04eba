"""A process's part in the mesh: NATS, journal, heartbeats, bookings, sessions."""
