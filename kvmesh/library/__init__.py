"""The index and the load figures as a library, for routers of one's own."""
