"""What is known of each worker: what it holds in work, how fast it is, what it reports."""
