"""Envoy's external processing protocol: messages of a gateway in, answers to it out."""
