"""Cost formulas of one's own: read from their files, tried, and kept in time."""
