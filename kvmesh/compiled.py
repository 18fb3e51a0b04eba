"""The compiled core of `kvmesh/native/`, where this installation has it: the same answers, sooner.

`KVMESH_CORE=pure` in the environment forbids it, to this process and its children.
"""

import os
from importlib import import_module
from typing import Final, Protocol, cast

VARIABLE: Final = "KVMESH_CORE"
VERSION: Final = 15
"""The interface that this code was written for, `NATIVE_VERSION` in kvmesh/native/core.h."""


class Native(Protocol):
    """What `kvmesh._native` has."""

    def Peer(self, name: str, epoch: int, now: float) -> object:  # noqa: N802  a type
        """Return a `core.routing.peers.peer.Peer` of which nothing was heard yet."""
        ...

    def MessageFold(self, **parts: object) -> object:  # noqa: N802  a type
        """Return a `core.routing.peers.message_fold.MessageFold`."""
        ...

    def OutputLengths(  # noqa: N802  a type
        self, forecast: type, statistics: type, block_size: int, max_families: int
    ) -> object:
        """Return a `core.routing.output_lengths.OutputLengths` that answers in these types."""
        ...

    def BookingOutbox(self, sequences: object, epoch: int) -> object:  # noqa: N802  a type
        """Return an empty `core.routing.peers.outbox.BookingOutbox`; `sequences` are native."""
        ...


def find_native(wish: str) -> tuple[Native | None, str]:
    """Return the compiled core or None, and which core that makes, in words."""
    if wish not in {"", "native"}:
        return None, f"pure ({VARIABLE}={wish})"
    try:
        found = import_module("kvmesh._native")
    except ImportError as error:
        return None, f"pure ({error}; `pip install` builds the native one)"
    if found.VERSION != VERSION:
        return None, f"pure (native is {found.VERSION}, not {VERSION}: `pip install` it again)"
    return cast("Native", found), "native"


NATIVE, CORE = find_native(os.environ.get(VARIABLE, ""))
