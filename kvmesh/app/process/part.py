"""Which part of a router of several processes this process is: its parent tells it."""

import os
from typing import Final, Literal

import msgspec

from kvmesh.bounds import UNREADABLE
from kvmesh.errors import ConfigError

VARIABLE: Final = "KVMESH_ROUTER_PART"


class RouterPart(msgspec.Struct, frozen=True):
    """One part. `port` is the one all edges share, `url` what the mesh is told of them.

    `socket` is the path at which the index process listens for them.
    """

    role: Literal["index", "edge"]
    number: int
    router_id: str
    port: int
    url: str
    socket: str

    @property
    def name(self) -> str:
        """Return its name in logs."""
        return self.role if self.role == "index" else f"edge-{self.number}"


def write_part(part: RouterPart) -> dict[str, str]:
    """Return the environment variable that tells a child its part."""
    return {VARIABLE: msgspec.json.encode(part).decode()}


def read_part() -> RouterPart | None:
    """Return the part this process was told; None in a router of one process."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=RouterPart)
    except UNREADABLE as error:
        raise ConfigError(f"{VARIABLE}={text!r}: {error}; it is only for children") from error
