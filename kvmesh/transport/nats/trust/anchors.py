"""The trust file: the public key of every member of a mesh, and so who may say what."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from kvmesh.bounds import UNREADABLE
from kvmesh.errors import ConfigError
from kvmesh.transport.nats.trust.claim import Claim
from kvmesh.transport.nats.trust.nkey import raw_key

SCHEMA: Final = 1
MAX_BYTES: Final = 32 * 1024**2
MAX_RANKS: Final = 9999
ANY: Final = "*"

Role = Literal["worker", "router", "meta-router", "admin"]

Speaker = tuple[Role, str, str]
"""Role, bucket and name; name `*` is everybody of that role in the bucket."""


class Anchor(msgspec.Struct, frozen=True, omit_defaults=True):
    """One member's key. With more than one of `ranks` it speaks as NAME-dp0, NAME-dp1 and so on.

    A key may be named for several members, and a member with several keys, as while it changes.
    """

    role: Role
    key: str
    bucket: str = ""
    name: str = ""
    ranks: int = 1

    def speakers(self) -> Iterator[Speaker]:
        """Yield as whom it speaks."""
        if self.ranks == 1 or self.name == ANY:
            yield self.role, self.bucket, self.name
        else:
            for rank in range(self.ranks):
                yield self.role, self.bucket, f"{self.name}-dp{rank}"


class _File(msgspec.Struct, frozen=True):
    schema: int
    members: tuple[Anchor, ...]


class _Signer(msgspec.Struct, frozen=True):
    public: bytes
    speakers: frozenset[Speaker]
    offices: frozenset[tuple[Role, str]]


class Anchors:
    """Who may say what. Immutable: a changed file makes new ones."""

    def __init__(self, anchors: Iterable[Anchor]) -> None:
        found: dict[str, list[Speaker]] = {}
        for anchor in anchors:
            found.setdefault(anchor.key, []).extend(anchor.speakers())
        self._signers = {
            key: _Signer(raw_key(key), frozenset(speakers), frozenset(one[:2] for one in speakers))
            for key, speakers in found.items()
        }

    def __contains__(self, key: str) -> bool:
        """Return whether the public key is a member's."""
        return key in self._signers

    def __len__(self) -> int:
        """Return how many keys are trusted."""
        return len(self._signers)

    def find_signer(self, key: str, claim: Claim) -> bytes | None:
        """Return the raw public key if its owner may make the claim, else None.

        A worker's heartbeat is that worker's, a router's that router's; commands, leases and
        manifests are any router's of the bucket.
        """
        signer = self._signers.get(key)
        if signer is None:
            return None
        role: Role = "worker" if claim.kind == "worker heartbeat" else "router"
        if claim.member:
            names = (claim.member, ANY)
            allowed = any((role, claim.bucket, name) in signer.speakers for name in names)
        else:
            allowed = (role, claim.bucket) in signer.offices
        return signer.public if allowed else None

    def describe(self, key: str) -> str:
        """Return whose key it is, in words; "" when it is nobody's."""
        signer = self._signers.get(key)
        if signer is None:
            return ""
        role, bucket, name = min(signer.speakers)
        return f"{role} {bucket}/{name}" if bucket else role


def encode_anchors(anchors: Iterable[Anchor]) -> bytes:
    """Return the trust file: JSON, for people to read; public keys only."""
    file = _File(SCHEMA, tuple(anchors))
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"


def read_anchors(path: Path) -> Anchors:
    """Return what the trust file says. Raises `ConfigError` naming the file, and the member."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"--nats-trust {path}: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"--nats-trust {path}: is longer than {MAX_BYTES} bytes")
    return decode_anchors(data, f"--nats-trust {path}")


def decode_anchors(data: bytes, place: str) -> Anchors:
    """Return what the trust file in `data` says. Raises `ConfigError` naming the place."""
    try:
        file = msgspec.json.decode(data, type=_File)
    except UNREADABLE as error:
        raise ConfigError(
            f"{place}: {error}; it must be trust.json as kvmesh nats-accounts writes it"
        ) from error
    if file.schema != SCHEMA:
        raise ConfigError(f"{place}: has schema {file.schema}, this build reads {SCHEMA}")
    if not file.members:
        raise ConfigError(f"{place}: names no members: no message would be accepted")
    for number, member in enumerate(file.members):
        who = f"{place}: member {number} ({member.role} {member.bucket[:64]}/{member.name[:64]})"
        if not 1 <= member.ranks <= MAX_RANKS:
            raise ConfigError(f"{who}: ranks {member.ranks}: use 1 to {MAX_RANKS}")
        if member.role in ("worker", "router") and not (member.bucket and member.name):
            raise ConfigError(f"{who}: needs a bucket and a name")
        try:
            raw_key(member.key)
        except ValueError as error:
            raise ConfigError(f"{who}: {error}") from error
    return Anchors(file.members)
