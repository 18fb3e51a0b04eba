"""The pure core: what is cached where, who is there, what a request costs, and where it goes.

What is called for each block or request of it is compiled: `kvmesh/native`.
"""

from typing import Final

from kvmesh._native import VERSION

NEEDED: Final = 28
"""The interface that this code was written for, `NATIVE_VERSION` in kvmesh/native/base/base.h."""


def check_version(found: int) -> None:
    """Raise `ImportError` for a compiled core of another version than this code was written for."""
    if found != NEEDED:
        raise ImportError(
            f"the compiled core is {found}, and this code needs {NEEDED}: run `pip install` again"
        )


check_version(VERSION)
