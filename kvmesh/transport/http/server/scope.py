"""The owner of one request: all that it holds is given back here, together and once."""

import asyncio
import re
from collections.abc import Callable, Coroutine
from os import urandom
from typing import Final, Literal, ParamSpec

import msgspec

from kvmesh.transport.http.wire.problem import Problem
from kvmesh.transport.http.wire.trace import Trace

End = Literal["finished", "client_gone", "failed", "cut", "refused", "crashed"]
"""How a request ended: see `Outcome`."""

Report = Callable[[Exception, bytes], None]
"""Logs and counts an error of ours by the id of its request."""

_CRASHED: Final = Problem(500, "internal error", code="internal_error")
REQUEST_ID: Final = re.compile(rb"[!-~]{1,200}")
_P = ParamSpec("_P")


class RequestIds:
    """Ids that are unique without asking the system for randomness each time."""

    __slots__ = ("count", "prefix")

    def __init__(self) -> None:
        self.prefix = urandom(8).hex().encode()
        self.count = 0

    def accept(self, sent: bytes | None) -> bytes:
        """Return the id a client sent when it is short and plain, else a new one: `9f1c…-2a`."""
        if sent is not None and REQUEST_ID.fullmatch(sent):
            return sent
        self.count += 1
        return b"%b-%x" % (self.prefix, self.count)


class Scope(msgspec.Struct, eq=False):
    """Ends a request once, however it ends.

    What a request holds (a booking, a place in a queue, a timer, a call, a task) is put into `held`
    by whoever gives it, as a call that gives it back and does nothing where nothing is left. `end`
    makes these calls: the newest first, each whatever becomes of the others. So what was built on
    something else goes before it, and the connection goes last.

    Whoever calls into a request from the event loop, a timer or another request does so by `enter`,
    or catches what it raises and passes it to `crash`.

    `trace`, if there is one, is ended behind all of them, then `last` is called.

    A struct, because C makes it, in a third of the time.

    `kind` and `status` are how it ended and what the client got, 0 for nothing; `on_crash` tells
    the client, or whoever sent the request, of an error of ours.
    """

    request_id: bytes
    report: Report
    kind: End = "refused"
    status: int = 0
    over: bool = False
    on_crash: Callable[[Problem], None] | None = None
    last: Callable[[], object] | None = None
    held: list[Callable[[], object]] = []
    trace: Trace | None = None

    def enter(self, entry: Callable[_P, object], /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Call into the request from outside: not when it is over; what it raises ends it."""
        if self.over:
            return
        try:
            entry(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  the request's edge: reported, told, released
            self.crash(error)

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run `work` for the request until either ends; what it raises ends the request."""
        task = asyncio.get_running_loop().create_task(work)
        self.held.append(task.cancel)
        task.add_done_callback(self._work_done)
        return task

    def crash(self, error: Exception) -> None:
        """End the request for an error of ours: reported, told to the client. Never raises."""
        self.report(error, self.request_id)
        if self.over:
            return
        self.kind = "crashed"
        if self.on_crash is not None:
            try:
                self.on_crash(_CRASHED)
            except Exception as another:  # noqa: BLE001  all that is held must be released
                self.report(another, self.request_id)
        self.end()

    def end(self) -> None:
        """Give back all that is held; does nothing the second time. Never raises."""
        if self.over:
            return
        self.over = True
        self.on_crash = None
        held = self.held
        while held:
            release = held.pop()
            try:
                release()
            except Exception as error:  # noqa: BLE001  the others must be released
                self.report(error, self.request_id)
        last, self.last = self.last, None
        if last is not None or self.trace is not None:
            try:
                if self.trace is not None:
                    self.trace.end(self.kind, self.status)
                if last is not None:
                    last()
            except Exception as error:  # noqa: BLE001  the end of a request never raises
                self.report(error, self.request_id)

    def _work_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.crash(error)
