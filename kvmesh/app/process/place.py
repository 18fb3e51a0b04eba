"""Which of several processes behind one port this one is."""

import os
from collections.abc import Mapping
from typing import Final

import msgspec

VARIABLE: Final = "KVMESH_PROCESS"
"""`NUMBER/COUNT/FOLDER`, set for each process by the one that supervises them."""


class Place(msgspec.Struct, frozen=True):
    """Process `number` of `count`; in `folder`, which is theirs alone, they find each other."""

    number: int
    count: int
    folder: str

    def own_port(self, shared: int) -> int:
        """Return the port at which this process alone listens."""
        return shared + 1 + self.number

    def page_path(self, number: int) -> str:
        """Return the Unix socket at which a process tells its metrics."""
        return f"{self.folder}/{number}.metrics"


def own_place(variables: Mapping[str, str] = os.environ) -> Place | None:
    """Return which process this is; None: it is alone."""
    text = variables.get(VARIABLE, "")
    if not text:
        return None
    number, count, folder = text.split("/", 2)
    return Place(int(number), int(count), folder)
