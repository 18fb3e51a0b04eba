"""What had passed of a stream behind any of its events, found from the marks that these left.

A mark is 8 bytes, least significant first: what the event added (one kind of text, tool calls that
begin, or nothing) and flags, token ids, bytes of that text, 32 bits of the hash of all of it. An
event that adds more leaves several (`mark_event` in native/wire/keep.c).
"""

from array import array
from typing import Final, NamedTuple

import msgspec

from kvmesh.core.chat.kept import Kept

MARK_BYTES: Final = 8
_KIND: Final = 7
_CALLS: Final = 3
_NOTHING: Final = 4
_MORE: Final = 8
_FINISHED: Final = 16
_ID_BYTES: Final = 4


class Cut(NamedTuple):
    """What a client has of a stream. `ended`: also what follows the reason of its end."""

    kept: Kept
    ended: bool


def count_events(marks: bytes | bytearray) -> int:
    """Return how many events left these marks."""
    return sum(not word & _MORE for word in array("I", bytes(marks))[::2])


def end_of_event(marks: bytes, events: int) -> int:
    """Return where the marks of so many events end, in bytes; -1 where there are fewer."""
    words, at = array("I", marks), 0
    while events and at < len(words):
        events -= not words[at] & _MORE
        at += 2
    return -1 if events else at * _ID_BYTES


def cut_behind(kept: Kept, events: int) -> Cut | None:
    """Return what had passed behind so many events; None where fewer are known. Of hashes the last
    32 bits are known. O(events).
    """
    end = end_of_event(kept.marks, events)
    if end < 0:
        return None
    words = array("I", kept.marks[:end])
    sizes, hashes, ids = [0] * (_NOTHING + 1), [0] * (_NOTHING + 1), 0
    for word, digest in zip(words[::2], words[1::2], strict=True):
        kind = min(word & _KIND, _NOTHING)
        sizes[kind] += word >> 16
        hashes[kind] = digest
        ids += word >> 8 & 0xFF
    lasts = [word for word in words[::2] if not word & _MORE]
    finished = bool(lasts) and bool(lasts[-1] & _FINISHED)
    content, reasoning, arguments, calls, _ = sizes
    found = msgspec.structs.replace(
        kept,
        token_ids=kept.token_ids[: ids * _ID_BYTES],
        content_bytes=content,
        content_hash=hashes[0],
        reasoning_bytes=reasoning,
        reasoning_hash=hashes[1],
        arguments_bytes=arguments,
        arguments_hash=hashes[2],
        tool_calls=calls,
        choices=1,
        finished=finished,
        marks=kept.marks[:end],
    )
    return Cut(found, finished and len(lasts) > 1 and bool(lasts[-2] & _FINISHED))


def behind_again(before: Kept, again: Kept, left_out: int) -> bytes:
    """Return the marks of events that a client got of an answer that came `again`, of which so many
    events were left out since it had them; nothing where that does not fit what it had `before`.
    """
    cut = cut_behind(again, left_out)
    if cut is None:
        return b""
    kept = cut.kept
    same = kept.content_bytes == before.content_bytes and kept.tool_calls == before.tool_calls
    same = same and kept.reasoning_bytes == before.reasoning_bytes
    same = same and kept.arguments_bytes == before.arguments_bytes
    return again.marks[len(kept.marks) :] if same else b""
