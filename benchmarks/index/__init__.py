"""The index against other indexes: speed, memory, exactness."""
