"""Connections to engines and replicas: requests out, answers in."""
