"""Members over the network: what engines are, load and publish; who fails or falls silent."""
