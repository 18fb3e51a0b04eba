"""A request that a program of somebody else's has booked at a worker."""

import asyncio
import time
from types import TracebackType
from typing import Self

import msgspec

from kvmesh._native import BookingOutbox
from kvmesh.core.members.outcomes import SERVED, UNKNOWN, Attempt
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.observe import get_logger


class BookingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks of its worker besides its prompt.

    `output_tokens`: how long its answer is expected to be. `streams` False: nobody will call
    `first_token`, so the end of its prefill is inferred. `request_id`: unique among all requests of
    the bucket; "" makes one. `root`: the namespace of its blocks; None: that of plain prompts.
    """

    output_tokens: int = 0
    streams: bool = True
    request_id: str = ""
    root: int | None = None


class Reservation:
    """One request booked at `worker_id` until `finish`, or the end of the `with` block.

    Its lease is renewed for as long as this object and its process live: one that is dropped
    unfinished is released, and logged. Calls are idempotent; after `finish` they change nothing.
    """

    def __init__(
        self,
        request_id: str,
        worker_id: str,
        scheduler: Scheduler,
        outbox: BookingOutbox,
    ) -> None:
        self.request_id = request_id
        self.worker_id = worker_id
        self._scheduler = scheduler
        self._outbox = outbox
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._prefilled = False

    def __enter__(self) -> Self:
        """Return this reservation."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release it, as served; after an exception, whose fault nobody knows, as unknown."""
        self.finish(SERVED if error is None else UNKNOWN)

    def __del__(self) -> None:
        """Release what was dropped; the collector may run in any thread."""
        if not self._open or self._loop.is_closed():
            return
        request_id, scheduler, outbox = self.request_id, self._scheduler, self._outbox

        def release() -> None:
            get_logger().warning("booking dropped unfinished", request_id=request_id)
            _finish(request_id, scheduler, outbox, UNKNOWN)

        self._loop.call_soon_threadsafe(release)

    def first_token(self) -> None:
        """Note the request's first token: its prompt waits no longer."""
        if self._open and not self._prefilled:
            self._prefilled = True
            self._outbox.first_token(self.request_id)
            self._scheduler.first_token(self.request_id, time.monotonic())

    def grow(self, output_tokens: int) -> None:
        """Note how many tokens the answer has in all so far; once a block is enough."""
        if self._open:
            self._scheduler.grow(self.request_id, output_tokens, time.monotonic())

    def finish(self, attempt: Attempt = SERVED) -> None:
        """Release the request, however it ended; `attempt` tells what that showed of the worker:
        `SERVED`, `UNKNOWN` (the client left), `status_attempt(500)`, `failed_attempt("reset")`.
        """
        if self._open:
            self._open = False
            _finish(self.request_id, self._scheduler, self._outbox, attempt)


def _finish(request_id: str, scheduler: Scheduler, outbox: BookingOutbox, attempt: Attempt) -> None:
    outbox.ended(request_id, attempt)
    scheduler.finish(request_id, time.monotonic(), attempt)
