"""What people and Prometheus see: dashboard, overview, metrics, explain, top."""
