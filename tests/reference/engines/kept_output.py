"""What a kept stream keeps and replaces: what kvmesh/native/wire/keep.c must do, in plain Python.

Events that have passed are decoded with the order of their keys, their texts as they are escaped.
"""

import json
import json.scanner
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from kvmesh._native import text_hash
from kvmesh.core.chat.kept import Kept, Loss
from kvmesh.core.engines.event_stream import MAX_HELD_BYTES, EventStream
from kvmesh.core.engines.sse import Usage

_STRING: Final = re.compile(r'((?:[^"\\]|\\.)*)"', re.DOTALL)
_CHUNK: Final = re.compile(rb"([0-9a-fA-F]+)\r\n")
_MOST_ID: Final = 2**32 - 1
_MOST_INDEX: Final = 10**9


class MalformedError(Exception):
    """An event that is not read."""


class NoJsonError(Exception):
    """An event that is no JSON: it may be read or not."""


class Pairs(list[tuple[str, Any]]):
    """An object."""


class Items(list[Any]):
    """A list, and where it stands."""

    span = 0, 0


def _string(text: str, at: int, _strict: bool) -> tuple[str, int]:
    found = _STRING.match(text, at)
    if found is None:
        raise ValueError("a string does not end")
    return found[1], found.end()


def _array(place: tuple[str, int], scan_once: Any, *_: object) -> tuple[Items, int]:
    values, end = json.decoder.JSONArray(place, scan_once)  # type: ignore[attr-defined]
    items = Items(values)
    items.span = place[1] - 1, end
    return items, end


_decoder: Final[Any] = json.JSONDecoder(object_pairs_hook=Pairs)
_decoder.parse_string, _decoder.parse_array = _string, _array
_scanner: Final[Any] = json.scanner
_decoder.scan_once = _scanner.py_make_scanner(_decoder)


class Choice:
    """What one event says of a choice: texts as they are escaped, and where lists of ids are."""

    def __init__(self, pairs: Pairs, lists: list[tuple[int, int]]) -> None:
        self.index = 0
        self.content = self.reasoning = ""
        self.arguments: list[str] = []
        self.calls = 0
        self.ids: list[int] | None = None
        self.prompt: list[int] | None = None
        self.finished = False
        for key, value in pairs:
            if key == "index":
                if type(value) is not int or not 0 <= value < _MOST_INDEX:
                    raise MalformedError
                self.index = value
            elif key == "text":
                self.content = value if isinstance(value, str) else self.content
            elif key == "token_ids":
                self.ids = read_ids(value, self.ids, lists)
            elif key == "prompt_token_ids":
                self.prompt = read_ids(value, self.prompt, lists)
            elif key == "finish_reason":
                self.finished = value is not None
            elif key == "delta" and isinstance(value, Pairs):
                self._take_delta(value)

    def _take_delta(self, delta: Pairs) -> None:
        for key, value in delta:
            if key == "content":
                self.content = value if isinstance(value, str) else self.content
            elif key in ("reasoning", "reasoning_content"):
                self.reasoning = value if isinstance(value, str) else self.reasoning
            elif key == "tool_calls" and isinstance(value, Items):
                parts = [part for call in value if isinstance(call, Pairs) for part in call]
                self.calls = sum(name == "id" and isinstance(one, str) for name, one in parts)
                inner = [
                    part
                    for name, one in parts
                    if name == "function" and isinstance(one, Pairs)
                    for part in one
                ]
                self.arguments = [
                    one for name, one in inner if name == "arguments" and isinstance(one, str)
                ]


def read_ids(
    value: object, before: list[int] | None, lists: list[tuple[int, int]]
) -> list[int] | None:
    """Return the ids of a list, and note where it stands."""
    if value is None:
        return before
    if not isinstance(value, Items) or not all(
        type(one) is int and 0 <= one <= _MOST_ID for one in value
    ):
        raise MalformedError
    lists.append(value.span)
    return [*value]


class Reading:
    """One event's JSON."""

    def __init__(self, data: bytes) -> None:
        try:
            event, end = _decoder.raw_decode(data.decode("latin-1"))
        except (ValueError, RecursionError):
            raise NoJsonError from None
        if data[end:].strip(b" \t") or not isinstance(event, Pairs):
            raise NoJsonError
        self.lists: list[tuple[int, int]] = []
        self.choices: list[Choice] = []
        self.prompt: list[int] | None = None
        for key, value in event:
            if key == "choices" and isinstance(value, Items):
                found = [one for one in value if isinstance(one, Pairs)]
                self.choices += [Choice(one, self.lists) for one in found]
            elif key == "prompt_token_ids":
                self.prompt = read_ids(value, self.prompt, self.lists)
        if [one.index for one in self.choices].count(0) > 1:
            raise MalformedError


class Keeper:
    """What passed, kept: `read` takes it and returns what passes instead."""

    def __init__(self, most_bytes: int, *, strip: bool) -> None:
        self.most_held = MAX_HELD_BYTES + 3 * most_bytes
        self._most_bytes = most_bytes
        self._strip = strip
        self._prompt: list[int] = []
        self._ids: list[int] = []
        self._texts = [b"", b"", b""]
        self._prompted = self._finished = self._stopped = False
        self._tool_calls = self._choices = 0
        self._lost: Loss = ""

    def kept(self) -> Kept:
        def packed(ids: list[int]) -> bytes:
            return b"".join(one.to_bytes(4, "little") for one in ids if not self._lost)

        content, reasoning, arguments = ((len(one), text_hash(0, one)) for one in self._texts)
        return Kept(
            packed(self._prompt),
            packed(self._ids),
            *content,
            *reasoning,
            *arguments,
            self._tool_calls,
            self._choices,
            self._finished,
            self._lost,
        )

    def read(self, passed: bytes) -> bytes:
        made, at = b"", 0
        while at < len(passed):
            behind = re.compile(rb"[\r\n]*").match(passed, at)
            assert behind is not None
            made += behind[0]
            at = behind.end()
            end = passed.find(b"\n\n", at)
            whole = passed[at:] if end < 0 else passed[at:end]
            if self._stopped or at == len(passed):
                return made + passed[at:]
            if b"\r" in whole or end < 0 or len(whole) >= self.most_held:
                self._lose("malformed" if b"\r" in whole else "too long")
                self._stopped = True
                return made + passed[at:]
            made += self._event(whole) + b"\n\n"
            at = end + 2
        return made

    def _event(self, event: bytes) -> bytes:
        if not event.startswith(b"data: {") or b"\n" in event:
            data = [one[5:].strip(b" ") for one in event.split(b"\n") if one.startswith(b"data:")]
            if any(one not in (b"", b"[DONE]") for one in data):
                self._lose("no ids")
            return event
        try:
            said = Reading(event[6:])
        except MalformedError:
            self._lose("malformed")
            return event
        self._choices = max([self._choices, *(one.index + 1 for one in said.choices)])
        for one in said.choices:
            if one.index == 0:
                self._take(one, one.prompt if said.prompt is None else said.prompt)
        for start, end in sorted(said.lists, reverse=True) if self._strip else ():
            event = event[: 6 + start] + b"null" + event[6 + end :]
        return event

    def _take(self, one: Choice, prompt: list[int] | None) -> None:
        said = (one.content, one.reasoning, "".join(one.arguments))
        texts = [text.encode("latin-1") for text in said]
        self._texts = [before + more for before, more in zip(self._texts, texts, strict=True)]
        self._tool_calls += one.calls
        self._finished |= one.finished
        if prompt is not None:
            if self._prompted:
                self._lose("malformed")
            self._prompted = True
            self._append(self._prompt, prompt)
        if one.ids is not None:
            self._append(self._ids, one.ids)
        elif any(texts) or one.calls:
            self._lose("no ids")

    def _append(self, to: list[int], ids: list[int]) -> None:
        to += ids
        if not self._lost and 4 * (len(self._prompt) + len(self._ids)) > self._most_bytes:
            self._lose("too long")

    def _lose(self, why: Loss) -> None:
        self._lost = self._lost or why


class KeptStream:
    """An `EventStream` whose passing bytes go through a `Keeper`."""

    def __init__(self, most_bytes: int, *, strip: bool) -> None:
        self.stream = EventStream()
        self._keeper = Keeper(most_bytes, strip=strip)
        self.stream.resume(b"", False, None, self._keeper.most_held)

    @property
    def usage(self) -> Usage | None:
        return self.stream.usage

    @property
    def kept(self) -> Kept:
        return self._keeper.kept()

    def feed(self, data: bytes) -> bytes:
        return self._keeper.read(self.stream.feed(data))

    def take(self, data: bytes, may_end: object) -> int | tuple[int, bytes]:
        flags = self.stream.take(data, may_end)
        passed = rechunked(data, self._keeper.read) if flags else data
        return flags if passed == data else (flags, passed)


def rechunked(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Return whole chunks, each with its content changed, behind a new size line where it was."""
    made, at = b"", 0
    while (line := _CHUNK.match(data, at)) is not None and int(line[1], 16):
        content = data[line.end() : line.end() + int(line[1], 16)]
        at = line.end() + len(content) + 2
        new = change(content)
        made += (line[0] if new == content else b"%x\r\n" % len(new)) + new + b"\r\n"
    return made + data[at:]


def decoded(events: bytes) -> list[object]:
    """Return the JSON of each event."""
    blocks = [one for one in events.split(b"\n\n") if one.startswith(b"data: {")]
    return [msgspec.json.decode(one[6:]) for one in blocks]
