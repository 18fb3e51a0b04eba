"""What a kept stream keeps and replaces: what kvmesh/native/wire/keep.c must do, in plain Python.

Events that have passed are read by descent through their JSON, value by value.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from kvmesh._native import text_hash
from kvmesh.core.chat.kept import Kept, Loss
from kvmesh.core.engines.event_stream import MAX_HELD_BYTES, EventStream
from kvmesh.core.engines.sse import Usage

_BLANKS: Final = re.compile(rb"[ \t]*")
_STRING: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ATOM: Final = re.compile(rb'[^ \t"{}\[\],:]+')
_NUMBER: Final = re.compile(rb"0|[1-9][0-9]*")
_INDEX: Final = re.compile(rb"[0-9]{1,9}")
_SKIPPED: Final = re.compile(rb'[^"{}\[\]]+')
_CHUNK: Final = re.compile(rb"([0-9a-fA-F]+)\r\n")
_MOST_ID: Final = 2**32 - 1

Span = tuple[int, int]


class MalformedError(Exception):
    """An event that is not read."""


class Choice:
    """What one event says of a choice: texts as they are escaped, and where lists of ids are."""

    def __init__(self) -> None:
        self.index = 0
        self.content = b""
        self.reasoning = b""
        self.arguments: list[bytes] = []
        self.calls = 0
        self.ids: list[int] | None = None
        self.prompt: list[int] | None = None
        self.finished = False


class Reading:
    """One event's JSON, read from its first byte to its last."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.lists: list[Span] = []
        self.choices: list[Choice] = []
        self.prompt: list[int] | None = None
        if self.peek() != b"{":
            raise MalformedError
        for key in self.members():
            if key == b"choices" and self.peek() == b"[":
                for _ in self.items():
                    if self.peek() == b"{":
                        self.choices.append(self.choice())
                    else:
                        self.skip()
            elif key == b"prompt_token_ids":
                self.prompt = self.ids(self.prompt)
            else:
                self.skip()
        self.peek()
        if self.at < len(data) or [one.index for one in self.choices].count(0) > 1:
            raise MalformedError

    def peek(self) -> bytes:
        found = _BLANKS.match(self.data, self.at)
        assert found is not None
        self.at = found.end()
        return self.data[self.at : self.at + 1]

    def match(self, pattern: re.Pattern[bytes]) -> re.Match[bytes]:
        self.peek()
        found = pattern.match(self.data, self.at)
        if found is None:
            raise MalformedError
        self.at = found.end()
        return found

    def mark(self, *marks: bytes) -> bytes:
        found = self.peek()
        if found not in marks:
            raise MalformedError
        self.at += 1
        return found

    def members(self) -> Iterator[bytes]:
        self.mark(b"{")
        if self.peek() == b"}":
            self.at += 1
            return
        while True:
            key = self.match(_STRING)[1]
            self.mark(b":")
            yield key
            if self.mark(b",", b"}") == b"}":
                return

    def items(self) -> Iterator[None]:
        self.mark(b"[")
        if self.peek() == b"]":
            self.at += 1
            return
        while True:
            yield
            if self.mark(b",", b"]") == b"]":
                return

    def skip(self) -> bytes:
        first = self.peek()
        start = self.at
        if first == b'"':
            self.match(_STRING)
        elif first not in (b"{", b"["):
            self.match(_ATOM)
        else:
            depth = 0
            while True:
                mark = self.peek()
                if mark == b'"':
                    self.match(_STRING)
                elif mark in (b"{", b"[", b"}", b"]"):
                    self.at += 1
                    depth += 1 if mark in b"{[" else -1
                    if not depth:
                        break
                else:
                    self.match(_SKIPPED)
        return self.data[start : self.at]

    def text(self, before: bytes) -> bytes:
        if self.peek() == b'"':
            return self.match(_STRING)[1]
        self.skip()
        return before

    def ids(self, before: list[int] | None) -> list[int] | None:
        if self.peek() != b"[":
            if self.match(_ATOM)[0] != b"null":
                raise MalformedError
            return before
        start = self.at
        ids = [int(self.match(_NUMBER)[0]) for _ in self.items()]
        if any(one > _MOST_ID for one in ids):
            raise MalformedError
        self.lists.append((start, self.at))
        return ids

    def choice(self) -> Choice:
        one = Choice()
        for key in self.members():
            match key:
                case b"index":
                    found = _INDEX.fullmatch(self.match(_ATOM)[0])
                    if found is None:
                        raise MalformedError
                    one.index = int(found[0])
                case b"text":
                    one.content = self.text(one.content)
                case b"delta" if self.peek() == b"{":
                    self.delta(one)
                case b"token_ids":
                    one.ids = self.ids(one.ids)
                case b"prompt_token_ids":
                    one.prompt = self.ids(one.prompt)
                case b"finish_reason":
                    one.finished = self.skip() != b"null"
                case _:
                    self.skip()
        return one

    def delta(self, one: Choice) -> None:
        for key in self.members():
            match key:
                case b"content":
                    one.content = self.text(one.content)
                case b"reasoning" | b"reasoning_content":
                    one.reasoning = self.text(one.reasoning)
                case b"tool_calls" if self.peek() == b"[":
                    one.calls, one.arguments = 0, []
                    for _ in self.items():
                        if self.peek() == b"{":
                            self.call(one)
                        else:
                            self.skip()
                case _:
                    self.skip()

    def call(self, one: Choice) -> None:
        for key in self.members():
            if key == b"id":
                one.calls += self.peek() == b'"'
                self.skip()
            elif key == b"function" and self.peek() == b"{":
                for inner in self.members():
                    if inner == b"arguments":
                        one.arguments.append(self.text(b""))
                    else:
                        self.skip()
            else:
                self.skip()


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
        for start, end in reversed(said.lists if self._strip else ()):
            event = event[: 6 + start] + b"null" + event[6 + end :]
        return event

    def _take(self, one: Choice, prompt: list[int] | None) -> None:
        texts = [one.content, one.reasoning, b"".join(one.arguments)]
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
