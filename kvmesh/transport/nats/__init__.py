"""NATS and JetStream behind the ports: bus, journal, key-value and object stores, control."""
