"""What the other replicas of a bucket tell of their bookings, read and counted as this one's own."""
