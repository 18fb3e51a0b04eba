"""Which worker, or which two, take a request; and what its targets (SLO) say to that."""
