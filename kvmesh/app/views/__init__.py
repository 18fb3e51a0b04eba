"""What people and Prometheus see: figures, traffic, programs, dashboard, explain, top."""
