"""The index: which worker holds which block, folded from events, exact and bounded."""
