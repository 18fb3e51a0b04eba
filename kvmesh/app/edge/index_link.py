"""An edge process's side of the index process: asked while it is there, done without when not."""

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, assert_never

from kvmesh.app.edge.messages import (
    Abandon,
    EdgeCodec,
    EdgeReport,
    FromEdge,
    Go,
    Hello,
    Queued,
    Refuse,
    RequestEnded,
    ToEdge,
    WorkerUpdate,
)
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.members.last_known import LastKnownFleet
from kvmesh.errors import TransportError
from kvmesh.observe import get_logger
from kvmesh.transport.http.forward.plan import Outcome, Target
from kvmesh.transport.http.server.scope import Scope
from kvmesh.transport.http.upstream.client import UpstreamFailure
from kvmesh.transport.local import LocalLink, connect_local

RETRY_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
REPORT_S: Final = 1.0
SETTLE_S: Final = 10.0
"""An index process just started has yet to hear from the workers: so long the edge knows better."""

_CRASHED: Final = Outcome("crashed", 0, 0)


class Asker(Protocol):
    """A request that is known to the index process."""

    @property
    def scope(self) -> Scope:
        """Return the request's owner."""
        ...

    def on_answer(self, answer: Go | Refuse | Queued) -> None:
        """Take what the index process decided."""
        ...

    def on_abandon(self, failure: UpstreamFailure) -> None:
        """Give up the attempt under way."""
        ...

    def on_index_lost(self) -> None:
        """Learn that the index process is away and knows nothing of this request any more."""
        ...


class IndexLink:
    """The one link of an edge; opened again whenever it breaks.

    `origin` is where the index process answers the cold paths, "" while it is away; `splits` says
    that it has workers which prefill for others. `resized` is told the block size to hash by.
    """

    def __init__(self, path: Path, edge: int) -> None:
        self.fleet = LastKnownFleet()
        self.origin = ""
        self.splits = False
        self.resized: Callable[[int], None] | None = None
        self.unguided = 0
        self._path = path
        self._edge = edge
        self._link: LocalLink[ToEdge, FromEdge] | None = None
        self._askers: dict[int, Asker] = {}
        self._numbers = itertools.count(1)
        self._lost = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._since_s = 0.0
        self._knows_workers = False

    def find_holder(self, model: str, hashes: Hashes) -> Target | None:
        """Return the least loaded worker that serves `model`: who holds what is not known here."""
        del hashes
        known = self.fleet.choose(model, None, ())
        if known is None:
            return None
        self.fleet.release(known.worker)
        return Target(known.url)

    def can_decide(self) -> bool:
        """Return whether the index process is there and knows at least as well where to go."""
        if self._link is None:
            return False
        return self._knows_workers or self._settled() or not self.fleet.usable

    def enter(self, asker: Asker) -> int:
        """Return the number under which `asker` is known from now on."""
        n = next(self._numbers)
        self._askers[n] = asker
        return n

    def leave(self, n: int) -> None:
        """Forget a request; what still comes for it is ignored."""
        self._askers.pop(n, None)

    def send(self, message: FromEdge) -> None:
        """Send to the index process, if it is there."""
        if self._link is not None:
            self._link.send(message)

    async def close(self) -> None:
        """Send what is waiting and leave."""
        if self._link is not None:
            self._link.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._lost.wait(), RETRY_MAX_S)

    async def run(self, statistics: Callable[[], EdgeReport]) -> None:
        """Keep the link open and report each second, for ever."""
        log = get_logger()
        delay_s = RETRY_S
        while True:
            try:
                link = await connect_local(self._path, EdgeCodec())
            except TransportError as error:
                log.debug("index process away", error=str(error), again_after_s=delay_s)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_MAX_S)
                continue
            self._lost.clear()
            link.attach(self)
            link.send(Hello(self._edge, os.getpid()))
            self._link, self._since_s, self._knows_workers = link, self._clock(), False
            log.info("index process connected", edge=self._edge)
            while not self._lost.is_set():
                link.send(statistics())
                try:
                    await asyncio.wait_for(self._lost.wait(), REPORT_S)
                except TimeoutError:
                    continue
            log.warning("index process away, routing by load alone", edge=self._edge)
            if self._clock() - self._since_s > RETRY_MAX_S:
                delay_s = RETRY_S
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)

    def on_message(self, message: ToEdge) -> None:
        """Hand an answer to whoever asked."""
        match message:
            case Go() | Refuse() | Queued():
                asker = self._askers.get(message.n)
                if asker is not None:
                    asker.scope.enter(asker.on_answer, message)
            case Abandon(n, failure):
                asker = self._askers.get(n)
                if asker is not None:
                    asker.scope.enter(asker.on_abandon, failure)
            case WorkerUpdate(workers, origin, block_size, splits):
                self.origin = origin
                if self.resized is not None:
                    self.resized(block_size)
                self.splits = splits
                self._knows_workers = any(one.usable for one in workers)
                if self._knows_workers or self._settled():
                    self.fleet.update(workers)
            case _:
                assert_never(message)

    def on_unsent(self, message: FromEdge, error: Exception) -> None:
        """End, at both ends, the one request that the message was of."""
        if isinstance(message, Hello | EdgeReport):
            return
        asker = self._askers.get(message.n)
        if asker is not None:
            asker.scope.crash(error)
        else:
            self.send(RequestEnded(message.n, _CRASHED, None))

    def _settled(self) -> bool:
        return self._clock() - self._since_s > SETTLE_S

    def on_lost(self) -> None:
        """Tell every request."""
        self._link = None
        self.origin = ""
        askers = list(self._askers.values())
        self._askers.clear()
        self._lost.set()
        for asker in askers:
            asker.scope.enter(asker.on_index_lost)
