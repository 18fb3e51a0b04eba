"""What an engine says of its KV cache, in the one form that every dialect is brought into."""

from typing import Final

import msgspec

FULL_ATTENTION: Final = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of cache groups that decide how long a prefix can be reused; None: untold."""


class EngineStored(msgspec.Struct, frozen=True):
    """The engine stored a run of blocks, each the parent of the next.

    `hashes` are the engine's own, opaque, as unsigned 64-bit. `tokens` holds `len(hashes) *
    block_size` ids as u32 little-endian, or nothing for a placeholder; a group of another kind than
    full attention may leave blocks out of `hashes`, `tokens` covers them all. `extras` has one
    digest a hash of whatever else the engine hashed with it (images, embeddings), 0 for nothing,
    `lookahead` the ids behind each block that its hash covers, equally many and as `tokens`.
    `window` is how many tokens a sliding-window group attends to.
    """

    hashes: tuple[int, ...]
    parent: int | None
    tokens: bytes
    block_size: int
    tier: int = 0
    group: int = 0
    kind: str | None = None
    lora: str | None = None
    salt: str | None = None
    extras: tuple[int, ...] = ()
    window: int | None = None
    lookahead: tuple[bytes, ...] = ()


class EngineRemoved(msgspec.Struct, frozen=True):
    """The engine evicted these blocks, its own hashes, from one tier and one cache group."""

    hashes: tuple[int, ...]
    tier: int = 0
    group: int = 0


class EngineCleared(msgspec.Struct, frozen=True):
    """The engine dropped its whole cache."""


EngineEvent = EngineStored | EngineRemoved | EngineCleared


class EngineBatch(msgspec.Struct, frozen=True):
    """One published batch. The counts tell what was skipped because this build does not know it.

    `odd` has, for each event left out because it cannot be read, what is wrong with it.
    """

    timestamp_s: float
    dp_rank: int | None
    events: tuple[EngineEvent, ...]
    unknown_fields: int = 0
    unknown_tags: int = 0
    odd: tuple[str, ...] = ()
