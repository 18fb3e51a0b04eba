"""Which prefixes the hashes of a store stand for."""

from collections.abc import Sequence
from typing import Final

from kvmesh.core.blocks.events import ROOT
from kvmesh.core.blocks.hashing import (
    extend_hash,
    lookahead_digest,
    namespace_root,
    sequence_hashes,
)
from kvmesh.core.engines.engine_events import EngineStored
from kvmesh.core.engines.kv_events.group_table import Path, Place

TOKEN_BYTES: Final = 4


def path_of(
    event: EngineStored,
    before: Place | None,
    numbers: Sequence[int | None],
    unit: int,
    secret: bytes,
) -> Path:
    """Return the boundaries up to the last hash whose block is known, behind `before`; `numbers`
    says which of the event's blocks each hash is, None where it is not known.
    """
    last = max((one for one in numbers if one is not None), default=-1)
    if before is None:
        key, parent = None, ROOT
        root = namespace_root(lora=event.lora or "", cache_salt=event.salt or "", secret=secret)
    else:
        key, parent, root = before.key, before.content, before.root
    end = (last + 1) * event.block_size * TOKEN_BYTES
    contents = _contents(event, event.tokens[:end], unit, parent, root)
    if not event.lookahead or last < 0:
        return Path(key, root, contents, contents)
    ahead = event.lookahead[numbers.index(last)]
    return Path(key, root, _keys(contents, event.tokens[:end] + ahead, unit, len(ahead)), contents)


def positions(blocks: int, known: Sequence[int | None], need: int) -> list[int | None]:
    """Return which of an event's `blocks` each of its hashes is, None where that cannot be said.

    `known` has the number of those whose prefix is known, in rising order. Where there are fewer
    hashes than blocks the others were left out: what is kept of a window is a row of `need` blocks,
    the last of which another group knows or the event ends with.
    """
    if len(known) == blocks:
        return list(range(blocks))
    found: list[int | None] = [None] * len(known)
    end, behind = blocks, len(found)
    for at in range(len(found) - 1, -2, -1):
        start = known[at] if at >= 0 else -1
        if start is None or not (0 <= start < end or at < 0):
            continue
        if at >= 0:
            found[at] = start
        unknown, room = behind - at - 1, end - start - 1
        if at >= 0 and unknown < room:
            unknown = min(unknown, need - 1)
        for step in range(1, min(unknown, room) + 1):
            found[behind - step] = end - step
        end, behind = start, at
    return found


def _contents(event: EngineStored, tokens: bytes, unit: int, parent: int, root: int) -> list[int]:
    """Return the content hashes of all units; opaque extras are folded in where they stand."""
    if not event.extras:
        return sequence_hashes(tokens, unit, root, parent if parent != ROOT else None)
    contents: list[int] = []
    width = event.block_size * TOKEN_BYTES
    seed = parent if parent != ROOT else root
    for index, extra in enumerate(event.extras[: len(tokens) // width]):
        if extra:
            seed = extend_hash(seed, extra)
        contents += sequence_hashes(tokens[index * width : (index + 1) * width], unit, seed)
        seed = contents[-1]
    return contents


def _keys(contents: Sequence[int], ids: bytes, unit: int, ahead: int) -> list[int]:
    width = unit * TOKEN_BYTES
    return [
        extend_hash(content, lookahead_digest(ids[at * width : at * width + ahead]))
        for at, content in enumerate(contents, 1)
    ]
