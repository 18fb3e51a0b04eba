"""Who is there: heartbeats, signs of life, and the URLs requests may be sent to."""
