"""Who is there: heartbeats, health, and what is known of each worker's load and speed."""
