"""What replicas of a bucket share of their bookings: as records, sent and received."""
