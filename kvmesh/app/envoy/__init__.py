"""Envoy as the gateway in front of endpoint pickers: its configuration, and one as a child."""
