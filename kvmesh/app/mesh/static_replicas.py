"""Replicas from the command line: no NATS; whether they are there and what they serve is asked."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from kvmesh.actors.meta_router import MetaRouter
from kvmesh.app.members.engine_probe import read_models
from kvmesh.app.members.warning_lines import by_reason
from kvmesh.app.views.figure import Source
from kvmesh.errors import ConfigError
from kvmesh.transport.http.fetch import fetch_ok
from kvmesh.transport.http.upstream.client import UpstreamPool

ASK_EVERY_S: Final = 5.0
ASK_UNHEARD_S: Final = 0.5
"""So often while one never answered: until then this process may not be ready."""

MOST_NAMED: Final = 4


def parse_replicas(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return the buckets and URLs that `--replica` names. Raises `ConfigError`."""
    found = []
    for text in texts:
        bucket, equals, url = text.partition("=")
        if not equals or not url.startswith(("http://", "https://")):
            raise ConfigError(f"--replica {text!r}: write bucket=http://host:port")
        found.append((bucket, url.rstrip("/")))
    return found


class StaticReplicas:
    """Tells `meta` that a replica answered and which models it serves; `replicas` are (name, URL).

    They are asked over a pool that `open_pool` makes: with the key and the CA that requests have.
    """

    def __init__(
        self,
        meta: MetaRouter,
        replicas: Sequence[tuple[str, str]],
        open_pool: Callable[[], UpstreamPool],
    ) -> None:
        self._meta = meta
        self._replicas = list(replicas)
        self._open_pool = open_pool
        self._pool: UpstreamPool | None = None

    async def start(self) -> None:
        """Ask every replica once."""
        self._pool = self._open_pool()
        await self._ask()

    def why_not(self) -> str:
        """Return whose answer is waited for; "" when everyone has answered once."""
        unheard = self._meta.unheard
        urls = [url for name, url in self._replicas if name in unheard]
        return f"no answer from {', '.join(urls[:MOST_NAMED])} yet" if urls else ""

    def warnings(self) -> tuple[str, ...]:
        """Return the replicas that never sent a heartbeat, in a line."""
        unheard = ((name, "no answer since this process began") for name in self._meta.unheard)
        return by_reason(unheard, "may get no requests")

    def figures(self) -> tuple[Source, ...]:
        """Return nothing."""
        return ()

    async def failed(self) -> None:
        """Go on asking, for ever."""
        while True:
            await asyncio.sleep(ASK_UNHEARD_S if self._meta.unheard else ASK_EVERY_S)
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
        if name in self._meta.unheard and await fetch_ok(self._pool, url, "/ready") is not None:
            self._meta.answered(name)
        served = await read_models(self._pool, url)
        if served is not None:
            self._meta.serves(name, served.models)
