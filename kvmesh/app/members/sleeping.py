"""Engines that sleep or are paused: they get no new requests until they wake.

Who puts one to sleep through a router says so. Engines that tell it themselves
(`/is_sleeping`, `/is_paused`) are asked, so that a router that starts, or a sibling, knows it, too.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import Final

import msgspec

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.actors.router import Router
from kvmesh.bounds import UNREADABLE
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.membership import Membership
from kvmesh.tasks import to_next
from kvmesh.transport.http.fetch import fetch_ok
from kvmesh.transport.http.upstream.client import UpstreamPool

LOOK_S: Final = 1.0
ASK_S: Final = 5.0
"""How often one engine is asked; a new one, and one that sleeps, at each look: replicas let it in
together when it wakes.
"""

_ASLEEP: Final = "its engine sleeps or is paused: POST /wake_up or /resume"
_QUESTIONS: Final = ("/is_sleeping", "/is_paused")


class _Answer(msgspec.Struct):
    is_sleeping: bool = False
    is_paused: bool = False


class SleepingEngines:
    """Workers whose engines sleep. `busy` are the URLs at which that is being changed: their word
    is not asked for meanwhile.
    """

    def __init__(self) -> None:
        self.workers: set[WorkerId] = set()
        self.busy: set[str] = set()
        self._mute: dict[str, int] = {}
        self._due_s: dict[str, float] = {}
        self._membership: Membership | None = None

    def note(self, workers: Iterable[WorkerId], *, asleep: bool) -> None:
        """Have workers left out, or let in again."""
        (self.workers.update if asleep else self.workers.difference_update)(workers)
        if self._membership is not None:
            self._membership.screen_anew()

    def screen(self, membership: Membership) -> None:
        """Leave sleeping workers out of `membership`."""
        self._membership = membership
        membership.screens.append(lambda worker: _ASLEEP if worker in self.workers else "")

    async def run(self, router: Router, pool: UpstreamPool) -> None:
        """Leave out those that sleep, and ask all the time those that can tell."""
        self.screen(router.scheduler.workers.membership)
        while True:
            await asyncio.sleep(to_next(LOOK_S))
            await self.look(router, pool, time.monotonic())

    async def look(self, router: Router, pool: UpstreamPool, now: float) -> None:
        """Ask each engine that is due; one that cannot tell again when it was restarted."""
        by_url: dict[str, list[WorkerHeartbeat]] = {}
        for beat in router.workers():
            by_url.setdefault(beat.url, []).append(beat)
        self.workers &= router.heartbeats.keys()
        self._mute = {url: epoch for url, epoch in self._mute.items() if url in by_url}
        self._due_s = {url: due_s for url, due_s in self._due_s.items() if url in by_url}
        asked = [
            (url, beats)
            for url, beats in by_url.items()
            if beats[0].answering
            and self._mute.get(url) != beats[0].epoch
            and url not in self.busy
            and self._due_s.get(url, now) <= now
        ]
        for url, beats in asked:
            sleeps = not self.workers.isdisjoint(beat.worker for beat in beats)
            self._due_s[url] = now + (0.0 if sleeps else ASK_S)
        await asyncio.gather(*(self._ask(pool, url, beats) for url, beats in asked))

    async def _ask(self, pool: UpstreamPool, url: str, beats: list[WorkerHeartbeat]) -> None:
        told = await asyncio.gather(*(fetch_ok(pool, url, path) for path in _QUESTIONS))
        answers = [found for body in told if (found := _read(body)) is not None]
        if not answers:
            self._mute[url] = beats[0].epoch
            return
        asleep = any(one.is_sleeping or one.is_paused for one in answers)
        names = {beat.worker for beat in beats}
        if url not in self.busy and asleep == names.isdisjoint(self.workers):
            self.note(names, asleep=asleep)


def _read(body: bytes | None) -> _Answer | None:
    try:
        return None if body is None else msgspec.json.decode(body, type=_Answer)
    except UNREADABLE:
        return None
