"""Looks at an engine all the time: does it answer, how loaded is it, which models has it now."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from kvmesh.actors.engine_messages import EngineAnswers, EngineServes
from kvmesh.app.members.engine_probe import read_models, read_weights
from kvmesh.app.members.load_feed import LoadFeed
from kvmesh.observe import get_logger
from kvmesh.tasks import to_next
from kvmesh.transport.http.fetch import fetch_ok
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.zmq.subscriber import EventSubscription

MISSED_LOOKS: Final = 3
MODELS_S = 1.0
"""How often the engine is asked which models it serves: adapters come and go while it runs."""

Report = Callable[[EngineAnswers | EngineServes], None]


class WatchedEngine(msgspec.Struct, frozen=True):
    """Where an engine is, what it served at first, by which version of its weights, and the seconds
    between two looks.
    """

    url: str
    health_path: str
    models: tuple[str, ...]
    interval_s: float
    weights_path: str = ""
    weights: str = ""


class EngineWatch:
    """Reports the engine's load; takes it out of service while it does not answer.

    One that answers again may be another: its `sources` are asked for its history first, since an
    engine that starts may take connections long before it answers that. It serves a look later.
    """

    def __init__(
        self,
        engine: WatchedEngine,
        pool: UpstreamPool,
        loads: LoadFeed,
        sources: Mapping[str, EventSubscription],
        report: Report,
    ) -> None:
        self._engine = engine
        self._pool = pool
        self._loads = loads
        self._sources = sources
        self._report = report
        self._models, self._weights = engine.models, engine.weights
        self._missed = 0
        self._returning = False
        self._log = get_logger(engine=engine.url)

    async def run(self) -> None:
        """Look until cancelled."""
        asked_s = time.monotonic()
        while True:
            await asyncio.sleep(to_next(self._engine.interval_s))
            healthy = await self._is_healthy()
            if healthy:
                await self._loads.check(self._pool)
            if healthy and time.monotonic() >= asked_s + MODELS_S:
                asked_s = time.monotonic()
                await self._check_models()
            self._note(healthy=healthy)

    async def _is_healthy(self) -> bool:
        engine = self._engine
        return await fetch_ok(self._pool, engine.url, engine.health_path) is not None

    def _note(self, *, healthy: bool) -> None:
        if healthy and self._returning:
            self._returning = False
            self._log.info("engine answers again")
            self._report(EngineAnswers(answering=True))
        elif healthy and self._missed >= MISSED_LOOKS:
            self._returning = True
            for source in self._sources.values():
                source.verify()
        self._missed = 0 if healthy else self._missed + 1
        if self._missed == MISSED_LOOKS:
            self._returning = False
            self._log.warning("engine does not answer")
            self._report(EngineAnswers(answering=False))

    async def _check_models(self) -> None:
        """Say which models the engine serves, with which weights, if that changed; none at all is
        not believed.
        """
        engine = self._engine
        served = await read_models(self._pool, engine.url)
        weights = await read_weights(self._pool, engine.url, engine.weights_path) or self._weights
        if served is None or not served.models:
            return
        if (served.models, weights) == (self._models, self._weights):
            return
        self._log.info("the engine serves others", models=served.models, weights=weights)
        self._models, self._weights = served.models, weights
        self._report(EngineServes(served.models, served.adapters, weights))
