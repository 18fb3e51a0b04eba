"""Agent programs: engines whose caches are too small for all, with and without turns."""
