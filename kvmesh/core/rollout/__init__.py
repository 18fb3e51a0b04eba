"""A policy changed in stages while requests run: two arms compared, the better one kept."""
