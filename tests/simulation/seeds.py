"""How many seeds of a storm are played."""

import os

EVERY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
SHARE = 8


def seeds(count: int) -> range:
    """Return the first eighth of so many seeds, all of them with the profile `nightly`.

    What any seed of a storm shows most of them show; `make chaos` plays thousands of others.
    """
    return range(count if EVERY else max(1, count // SHARE))
