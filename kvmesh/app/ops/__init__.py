"""Commands of operators: up, config, health, snapshots, NATS."""
