"""A process's part in the mesh: the event plane, journal, heartbeats, bookings, sessions."""
