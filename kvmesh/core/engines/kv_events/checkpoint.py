"""A sidecar's knowledge of its engine as of one batch, for the one that is started after it."""

from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from kvmesh.bounds import UNREADABLE, Hash, Sequence
from kvmesh.core.engines.kv_events.event_source import batch_digest
from kvmesh.core.engines.kv_events.saved_cache import SavedCache, check_saved
from kvmesh.errors import CodecError

VERSION: Final = 1

MOST_BYTES: Final = 64 << 20

MOST_BLOCKS: Final = 1_600_000
"""Of an engine with more no checkpoint is taken; one takes 39 bytes, with twins and tiers more."""


class EngineMark:
    """The engine's last batch that was read: `seq`, -1 for none."""

    def __init__(self, seq: int = -1, digest: int = 0) -> None:
        self.seq = seq
        self._digest: int | None = digest
        self._payload = b""

    def move(self, seq: int, payload: bytes) -> None:
        """Take the next batch."""
        self.seq, self._payload, self._digest = seq, payload, None

    def digest(self) -> int:
        """Return the digest of the batch. O(its bytes), once."""
        if self._digest is None:
            self._digest = batch_digest(self._payload)
        return self._digest


class EngineCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """What an engine held behind its batch `seq`, whose bytes have the digest `batch`.

    The digest tells whether the publisher of today is that of then: batches have a timestamp.
    Contents are those of the namespace's secret with `secret_mark`.
    """

    seq: Sequence
    batch: Hash
    secret_mark: Hash
    saved: SavedCache


class _Envelope(msgspec.Struct, array_like=True):
    """What is stored: `digest` is of `body`, which damage must not get past."""

    version: int
    digest: int
    body: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(EngineCheckpoint)
_opener = msgspec.msgpack.Decoder(_Envelope)


def encode_checkpoint(checkpoint: EngineCheckpoint) -> bytes:
    """Return its bytes. O(blocks)."""
    body = _encoder.encode(checkpoint)
    return _encoder.encode(_Envelope(VERSION, xxh3_64_intdigest(body), body))


def decode_checkpoint(data: bytes) -> EngineCheckpoint:
    """Return the checkpoint in `data`; whether its blocks are any is not looked at.

    Raises `CodecError` for damaged bytes, and for a version that is not read.
    """
    where = f"checkpoint of {len(data)} bytes"
    try:
        envelope = _opener.decode(data)
        if envelope.version != VERSION:
            raise CodecError(f"{where} has version {envelope.version}, this build reads {VERSION}")
        if xxh3_64_intdigest(envelope.body) != envelope.digest:
            raise CodecError(f"{where} is damaged")
        checkpoint = _decoder.decode(envelope.body)
    except UNREADABLE as error:
        raise CodecError(f"{where}: {error}") from error
    check_saved(checkpoint.saved)
    return checkpoint
