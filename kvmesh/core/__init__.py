"""The pure core: what is cached where, who is there, what a request costs, and where it goes.

What is called for each block or request of it is compiled: `kvmesh/native`.
"""

from typing import Final

from kvmesh._native import VERSION

NEEDED: Final = 15
"""The interface that this code was written for, `NATIVE_VERSION` in kvmesh/native/base/base.h."""

if VERSION != NEEDED:
    raise ImportError(
        f"the compiled core is {VERSION}, and this code needs {NEEDED}: run `pip install` again"
    )
