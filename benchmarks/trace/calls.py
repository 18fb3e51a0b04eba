"""Counts the calls of kvmesh's functions on one thread while an event loop runs there."""

import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import msgspec

import kvmesh

PACKAGE: Final = Path(kvmesh.__file__).parent
LOOP_DEPTH: Final = 0

_RESUMED: Final = 0x20 | 0x80 | 0x200
"""Flags of the code of generators and coroutines, which are called anew at each step."""


class Call(msgspec.Struct, frozen=True):
    """One call: `depth` kvmesh functions were active when it came, 0: the event loop called."""

    depth: int
    path: str
    line: int
    function: str


class Crossings(msgspec.Struct, frozen=True):
    """What one request passed. `crossings` are calls from one file into another."""

    calls: int
    functions: int
    files: int
    crossings: int
    by_package: dict[str, tuple[int, int, int]]
    tree: tuple[Call, ...]


class CallLog:
    """A profile function for `sys.setprofile`: keeps each entry into a function of kvmesh.

    Functions of other packages, of C and of C extensions are passed over; so are comprehensions,
    and a generator's later steps.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._active: list[bool] = []
        self._depth = LOOP_DEPTH
        self._prefix = f"{PACKAGE}/"
        self._seen: set[int] = set()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Take one event of the interpreter."""
        del argument
        if event == "call":
            code = frame.f_code
            counts = code.co_filename.startswith(self._prefix) and not _is_comprehension(code)
            self._active.append(counts)
            if counts:
                if not code.co_flags & _RESUMED or id(frame) not in self._seen:
                    path = code.co_filename.removeprefix(self._prefix)
                    call = Call(self._depth, path, code.co_firstlineno, code.co_qualname)
                    self.calls.append(call)
                if code.co_flags & _RESUMED:
                    self._seen.add(id(frame))
                self._depth += 1
        elif event == "return" and self._active:
            self._depth -= self._active.pop()


def _is_comprehension(code: CodeType) -> bool:
    return code.co_name in {"<listcomp>", "<setcomp>", "<dictcomp>"}


def of_request(calls: list[Call]) -> list[Call]:
    """Return the calls that began in a connection of a client or to an engine, without timers."""
    found: list[Call] = []
    counts = False
    for call in calls:
        if call.depth == LOOP_DEPTH:
            counts = call.path.startswith(("transport/http/server/", "transport/http/upstream/"))
        if counts:
            found.append(call)
    return found


def count(calls: list[Call]) -> Crossings:
    """Return the figures of one request's calls."""
    files: dict[str, list[Call]] = {}
    for call in calls:
        files.setdefault(_package(call.path), []).append(call)
    crossings: Counter[str] = Counter()
    above: list[Call] = []
    for call in calls:
        del above[call.depth :]
        if above and above[-1].path != call.path:
            crossings[_package(call.path)] += 1
        above.append(call)
    by_package = {
        name: (len(own), len({(one.path, one.line) for one in own}), len({one.path for one in own}))
        for name, own in sorted(files.items())
    }
    return Crossings(
        calls=len(calls),
        functions=len({(one.path, one.line) for one in calls}),
        files=len({one.path for one in calls}),
        crossings=crossings.total(),
        by_package=by_package,
        tree=tuple(calls),
    )


def _package(path: str) -> str:
    return path.rpartition("/")[0].replace("/", ".") or "kvmesh"


def profile_here(log: CallLog | None) -> None:
    """Begin to count the calls of this thread; None: end it."""
    sys.setprofile(log)
