"""Which snapshot objects count: the newest, and older generations in case it is bad."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from kvmesh.bounds import UNREADABLE, Count, MaybeName, Name, Sequence, shown
from kvmesh.errors import CodecError, NewerError
from kvmesh.formats import MAX_FORMAT, OWN, FormatNumber, FormatRange, VersionText

GENERATIONS: Final = 3
"""Kept: the newest and two before it."""

MOST_LISTED: Final = 64
"""Generations of a manifest that is read: versions may differ in how many they keep."""


class SnapshotGeneration(msgspec.Struct, frozen=True):
    """One verified snapshot: object `name` holds the index at `sequence` of stream `created`.

    `fence` is the writer's fencing token; `blocks` counts (worker, block) entries. The object has
    format `encoding`, and was written by `version` of kvmesh.
    """

    name: Name
    created: MaybeName
    sequence: Sequence
    size: Count
    sha256: MaybeName
    fence: Sequence
    blocks: Count = 0
    encoding: FormatNumber = 1
    version: VersionText = ""


class Manifest(msgspec.Struct, frozen=True):
    """The kept generations, newest first."""

    generations: Annotated[tuple[SnapshotGeneration, ...], Meta(max_length=MOST_LISTED)] = ()
    schema: int = 1

    def with_newest(self, newest: SnapshotGeneration, schema: int = 1) -> "Manifest | None":
        """Return the manifest with `newest` in front; None when it must not supersede this one.

        It has the format `schema`.

        Within one stream both sequence and fence must grow: a holder that was paused while
        another took over is refused here, whatever it believes of its lease.
        """
        if self.generations:
            last = self.generations[0]
            if newest.fence < last.fence:
                return None
            if newest.created == last.created and newest.sequence <= last.sequence:
                return None
        return Manifest((newest, *self.generations)[:GENERATIONS], schema)

    def is_emptied_by(self, newest: SnapshotGeneration) -> bool:
        """Return whether `newest` holds nothing and the one before it something.

        The journal tells as much: a sidecar that starts holds nothing until it has read what its
        engine holds, and a snapshot of that moment would only displace a better one.
        """
        return newest.blocks == 0 and any(one.blocks > 0 for one in self.generations[:1])

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


class _Writer(msgspec.Struct):
    """Who wrote a generation."""

    version: VersionText = ""


class _Version(msgspec.Struct):
    """What a manifest of any version has."""

    schema: int = 1
    generations: tuple[_Writer, ...] = ()


class _Schema(msgspec.Struct):
    """The least that a manifest of any version has."""

    schema: int = 1


_decoder = msgspec.json.Decoder(Manifest)
_version_decoder = msgspec.json.Decoder(_Version)
_schema_decoder = msgspec.json.Decoder(_Schema)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as the key-value store holds it: JSON, for people to read."""
    return msgspec.json.encode(manifest)


def decode_manifest(data: bytes | None, reads: FormatRange = OWN.manifest) -> Manifest:
    """Return the manifest in `data`; an empty one for None.

    Raises `CodecError` for garbage, `NewerError` for one that must not be overwritten.
    """
    if data is None:
        return Manifest()
    try:
        schema = _schema_decoder.decode(data).schema
        if schema > reads.newest:
            raise NewerError(
                f"snapshot manifest has schema {shown(schema)}, this build reads {reads}: "
                "it is a newer kvmesh's",
                number=min(schema, MAX_FORMAT),
                version=_writer(data),
            )
        manifest = _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CodecError(f"snapshot manifest of {len(data)} bytes: {error}") from error
    if manifest.schema not in reads:
        raise CodecError(
            f"snapshot manifest has schema {shown(manifest.schema)}, this build reads {reads}"
        )
    return manifest


def refuse_newer(manifest: Manifest, reads: FormatRange = OWN.snapshot) -> None:
    """Raise `NewerError` where the newest generation has a format beyond those that are read."""
    for newest in manifest.generations[:1]:
        if newest.encoding > reads.newest:
            raise NewerError(
                f"snapshot {newest.name} has format {newest.encoding}, this build reads {reads}: "
                "it is a newer kvmesh's",
                number=newest.encoding,
                version=newest.version,
            )


def _writer(data: bytes) -> str:
    """Return the version that wrote a manifest of any format, as far as that can be read."""
    try:
        generations = _version_decoder.decode(data).generations
    except UNREADABLE:
        return ""
    return generations[0].version if generations else ""
