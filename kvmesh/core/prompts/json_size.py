"""How much there is in a JSON body, counted as its bytes arrive and before anything is made of it.

Decoded, a body of many small values costs a hundred times what its bytes do: 1 million messages in
42 MB take the interpreter 250 ms to decode and 350 ms to render.
"""

import re
from collections.abc import Callable
from typing import Final

from kvmesh.compiled import NATIVE

NUMBERS_A_VALUE: Final = 4
"""Numbers that cost as much as one other value: token ids come by the hundred thousand."""

BETWEEN: Final = 0
STRING: Final = 1
ESCAPED: Final = 2
NUMBER: Final = 3

_TOKEN: Final = re.compile(rb'"|[\[{]|[\]}]|[-0-9][-+.0-9eE]*|[tfn]')
_REST_OF_NUMBER: Final = re.compile(rb"[-+.0-9eE]*")

ScanJson = Callable[[bytes | memoryview, int, int], tuple[int, int, int, int, int]]


def pure_scan_json(
    data: bytes | memoryview, state: int, depth: int
) -> tuple[int, int, int, int, int]:
    """Return (values, numbers, deepest, state, depth) of one piece of a JSON text.

    `values` are objects, lists, strings (keys, too) and the words true, false, null; each counts
    where it begins. `state` (`BETWEEN` at first) and `depth` are what the piece before returned.
    What is no JSON is counted somehow, and never raises.
    """
    data = bytes(data)
    values = numbers = 0
    deepest = depth
    at = 0
    if state in {STRING, ESCAPED}:
        at, state = _skip_string(data, 0, state)
    elif state == NUMBER and (rest := _REST_OF_NUMBER.match(data)) is not None:
        at = rest.end()
    while at < len(data) and (found := _TOKEN.search(data, at)) is not None:
        at, first, state = found.end(), found[0][:1], BETWEEN
        match first:
            case b'"':
                values += 1
                at, state = _skip_string(data, at, STRING)
            case b"{" | b"[":
                values += 1
                depth += 1
                deepest = max(deepest, depth)
            case b"}" | b"]":
                depth = max(0, depth - 1)
            case b"t" | b"f" | b"n":
                values += 1
            case _:
                numbers += 1
                state = NUMBER
    if state == NUMBER and at < len(data):
        state = BETWEEN
    return values, numbers, deepest, state, depth


def _skip_string(data: bytes, at: int, state: int) -> tuple[int, int]:
    """Return where the string that `at` is in ends, and the state there."""
    if state == ESCAPED:
        if at == len(data):
            return at, ESCAPED
        at += 1
    while True:
        quote = data.find(b'"', at)
        stop = quote if quote >= 0 else len(data)
        odd = (stop - at - len(data[at:stop].rstrip(b"\\"))) & 1
        if quote < 0:
            return stop, ESCAPED if odd else STRING
        at = quote + 1
        if not odd:
            return at, BETWEEN


scan_json: Final[ScanJson] = NATIVE.scan_json if NATIVE else pure_scan_json


class JsonSize:
    """Counts a body whose pieces come one by one. Only a JSON object is counted: anything else
    (audio, packed token ids) costs a router nothing but its bytes.
    """

    __slots__ = ("_depth", "_state", "deepest", "numbers", "skipped", "values")

    def __init__(self) -> None:
        self.values = 0
        self.numbers = 0
        self.deepest = 0
        self.skipped: bool | None = None
        self._state = BETWEEN
        self._depth = 0

    @property
    def items(self) -> int:
        """Return the values so far, `NUMBERS_A_VALUE` numbers counted as one."""
        return self.values + self.numbers // NUMBERS_A_VALUE

    def feed(self, data: bytes | memoryview) -> None:
        """Count the next piece. O(bytes), about 1 ms a MiB at worst; pure up to 60 ms."""
        if self.skipped is None and (start := bytes(data).lstrip(b" \t\r\n")[:1]):
            self.skipped = start != b"{"
        if not self.skipped:
            values, numbers, deepest, self._state, self._depth = scan_json(
                data, self._state, self._depth
            )
            self.values += values
            self.numbers += numbers
            self.deepest = max(self.deepest, deepest)
