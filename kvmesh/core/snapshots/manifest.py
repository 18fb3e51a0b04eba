"""Which snapshot objects count: the newest, and older generations in case it is bad."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from kvmesh.bounds import Count, MaybeName, Name, Sequence
from kvmesh.errors import CodecError, NewerError

SCHEMA: Final = 1
GENERATIONS: Final = 3
"""Kept: the newest and two before it."""

MOST_LISTED: Final = 64
"""Generations of a manifest that is read: versions may differ in how many they keep."""


class SnapshotGeneration(msgspec.Struct, frozen=True):
    """One verified snapshot: object `name` holds the index at `sequence` of stream `created`.

    `fence` is the writer's fencing token; `blocks` counts (worker, block) entries.
    """

    name: Name
    created: MaybeName
    sequence: Sequence
    size: Count
    sha256: MaybeName
    fence: Sequence
    blocks: Count = 0


class Manifest(msgspec.Struct, frozen=True):
    """The kept generations, newest first."""

    generations: Annotated[tuple[SnapshotGeneration, ...], Meta(max_length=MOST_LISTED)] = ()
    schema: int = SCHEMA

    def with_newest(self, newest: SnapshotGeneration) -> "Manifest | None":
        """Return the manifest with `newest` in front; None when it must not supersede this one.

        Within one stream both sequence and fence must grow: a holder that was paused while
        another took over is refused here, whatever it believes of its lease.
        """
        if self.generations:
            last = self.generations[0]
            if newest.fence < last.fence:
                return None
            if newest.created == last.created and newest.sequence <= last.sequence:
                return None
        return Manifest((newest, *self.generations)[:GENERATIONS])

    def purge_limit(self, created: str) -> int:
        """Return the sequence up to which the journal is not needed to load a generation.

        That is what the second newest holds, so that the journal goes on behind two of them; 0
        while there is only one of this stream.
        """
        same = [one.sequence for one in self.generations if one.created == created]
        return same[1] if len(same) > 1 else 0

    def names(self) -> frozenset[str]:
        """Return the objects that must not be deleted."""
        return frozenset(one.name for one in self.generations)


class _Version(msgspec.Struct):
    """What a manifest of any version has."""

    schema: int = SCHEMA


_decoder = msgspec.json.Decoder(Manifest)
_version_decoder = msgspec.json.Decoder(_Version)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as the key-value store holds it: JSON, for people to read."""
    return msgspec.json.encode(manifest)


def decode_manifest(data: bytes | None) -> Manifest:
    """Return the manifest in `data`; an empty one for None.

    Raises `CodecError` for garbage, `NewerError` for one that must not be overwritten.
    """
    if data is None:
        return Manifest()
    try:
        schema = _version_decoder.decode(data).schema
        if schema > SCHEMA:
            raise NewerError(
                f"snapshot manifest has schema {schema}, this build reads {SCHEMA}: "
                "it is a newer kvmesh's"
            )
        manifest = _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CodecError(f"snapshot manifest of {len(data)} bytes: {error}") from error
    if manifest.schema != SCHEMA:
        raise CodecError(
            f"snapshot manifest has schema {manifest.schema}, this build reads {SCHEMA}"
        )
    return manifest
