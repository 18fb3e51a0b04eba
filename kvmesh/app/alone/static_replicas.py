"""Replicas from the command line: no NATS; what they serve is asked of them."""

import asyncio
from collections.abc import Sequence
from typing import Final

from kvmesh.actors.members.meta_router import MetaRouter
from kvmesh.app.engines.probe import read_models
from kvmesh.app.figures.figure import Source
from kvmesh.transport.http.upstream.client import UpstreamPool

ASK_EVERY_S: Final = 5.0


class StaticReplicas:
    """Tells `meta` which models each replica serves; `replicas` are (name, URL)."""

    def __init__(self, meta: MetaRouter, replicas: Sequence[tuple[str, str]]) -> None:
        self._meta = meta
        self._replicas = list(replicas)
        self._pool: UpstreamPool | None = None

    async def start(self) -> None:
        """Ask every replica once."""
        self._pool = UpstreamPool()
        await self._ask()

    def why_not(self) -> str:
        """Return that nothing is waited for."""
        return ""

    def warnings(self) -> tuple[str, ...]:
        """Return nothing: there is no plane that could refuse anything."""
        return ()

    def figures(self) -> tuple[Source, ...]:
        """Return nothing."""
        return ()

    async def failed(self) -> None:
        """Go on asking, for ever."""
        while True:
            await asyncio.sleep(ASK_EVERY_S)
            await self._ask()

    async def stop(self) -> None:
        """Close the connections; safe to call twice."""
        if self._pool is not None:
            await self._pool.close()

    async def _ask(self) -> None:
        await asyncio.gather(*(self._ask_one(name, url) for name, url in self._replicas))

    async def _ask_one(self, name: str, url: str) -> None:
        """Take a replica's answer; what one served that does not answer now is still believed."""
        assert self._pool is not None
        served = await read_models(self._pool, url)
        if served is not None:
            self._meta.serves(name, served.models)
