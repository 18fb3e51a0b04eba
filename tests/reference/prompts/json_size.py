"""How much there is in a JSON text: the naive model of kvmesh/native/bodies/json_size.c."""

import re
from typing import Final

from kvmesh.core.prompts.json_size import BETWEEN

STRING: Final = 1
ESCAPED: Final = 2
NUMBER: Final = 3

_TOKEN: Final = re.compile(rb'"|[\[{]|[\]}]|[-0-9][-+.0-9eE]*|[tfn]')
_REST_OF_NUMBER: Final = re.compile(rb"[-+.0-9eE]*")


def scan_json(data: bytes | memoryview, state: int, depth: int) -> tuple[int, int, int, int, int]:
    """Return (values, numbers, deepest, state, depth) of one piece of a JSON text.

    Each value counts where it begins.
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
