"""How fast each worker prefills and decodes, learned from first tokens, chunks and answers."""

from typing import Final

from kvmesh._native import Speeds

PRIOR_MS_PER_TOKEN: Final = 0.05
"""Assumed before any first token: a mid-size model on one current GPU, ms per uncached token."""


def new_speeds() -> Speeds:
    """Return the speeds of a fleet of which nothing was seen."""
    return Speeds(PRIOR_MS_PER_TOKEN)
