"""The outside world: HTTP, NATS, ZMQ and Unix sockets."""
