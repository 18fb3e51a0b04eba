"""Programs: agents whose requests follow each other, and whose caches are worth keeping."""
