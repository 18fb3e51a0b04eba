"""What replicas of a bucket tell each other of their bookings: as records, told and heard."""
