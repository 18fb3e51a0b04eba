"""Engines' ZMQ publishers: events followed with replay, load heard."""
