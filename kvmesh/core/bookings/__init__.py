"""What router replicas tell each other of requests: the records of bookings, and who writes them."""
