"""Blocks of prompt tokens: their content hashes, and the journal's vocabulary of cache events."""
