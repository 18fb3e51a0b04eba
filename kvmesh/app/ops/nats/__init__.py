"""NATS for operators: accounts, rights, streams, and a server as a child."""
