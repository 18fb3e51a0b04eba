"""A router of several processes: edges forward, the index process decides."""
