"""`trust.json`: the public keys of everybody who logs in, for processes to verify each other by."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kvmesh.app.nats.members import Member
from kvmesh.transport.nats.trust.anchors import Anchor, encode_anchors

NAME: Final = "trust.json"
READABLE: Final = 0o644


def write_trust(out: Path, members: Iterable[Member]) -> Path:
    """Write the trust file into `out`, return its path; processes read it within a second.

    It is written in place, not renamed: a container that mounts the file sees the change.
    Raises `OSError`.
    """
    anchors = (Anchor(one.role, one.public_key, one.bucket, one.name, one.ranks) for one in members)
    path, data = out / NAME, encode_anchors(anchors)
    if not path.exists() or path.read_bytes() != data:
        path.write_bytes(data)
        path.chmod(READABLE)
    return path
