"""Commands of operators: up, config, NATS accounts and streams, snapshots."""
