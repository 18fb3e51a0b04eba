"""Engines over the network: what they are, what they load, what they publish."""
