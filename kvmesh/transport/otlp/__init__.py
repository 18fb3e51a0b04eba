"""OTLP: spans as protobuf, and their way to a collector."""
