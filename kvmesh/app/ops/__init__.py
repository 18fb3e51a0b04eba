"""Commands of operators: up, doctor, config, health, snapshots, NATS."""
