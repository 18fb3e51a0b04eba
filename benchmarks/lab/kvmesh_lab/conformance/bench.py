"""The bench of the bare cases: a connection to the picker, its pool, and requests it will take."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import msgspec

from kvmesh_lab.conformance.bodies import chat_body
from kvmesh_lab.conformance.case import Broken, NotTried, holds
from kvmesh_lab.conformance.exchange import Asked, Received, ask, picked
from kvmesh_lab.conformance.link import Call, Link, Tls
from kvmesh_lab.conformance.wire import Refusal

LEARNING_PICKS = 24


class Target(msgspec.Struct, frozen=True):
    """The picker under test. `endpoints` are what it may pick; none: it is not known.

    `patience_s` is how long the next message of it may take.
    """

    address: str
    health: str = ""
    endpoints: tuple[str, ...] = ()
    model: str = "conformance"
    path: str = "/v1/chat/completions"
    patience_s: float = 5.0
    tls: Tls | None = None

    def connect(self) -> Link:
        """Return a new connection."""
        return Link(self.address, tls=self.tls, patience_s=self.patience_s)


class Bench:
    """A picker, with a connection that most cases share."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.link = target.connect()
        self.pool = target.endpoints
        """Endpoints the picker may pick, or those that it did pick, where they were not told."""

        self.refusals: list[Refusal] = []
        """With what requests were refused when many were open."""

    async def close(self) -> None:
        """Close the connection."""
        await self.link.close()

    def asks(self, size: int = 600, *, seed: int = 0) -> Asked:
        """Return a chat request whose body has `size` bytes, at least as many as it needs."""
        return Asked(path=self.target.path, body=chat_body(self.target.model, size, seed=seed))

    @asynccontextmanager
    async def asked(
        self, asked: Asked, link: Link | None = None
    ) -> AsyncGenerator[tuple[Call, Received]]:
        """Yield the call in which `asked` was sent, and what was answered."""
        async with (link or self.link).call() as call:
            yield call, await ask(call, asked)

    async def pick(self, asked: Asked, link: Link | None = None) -> tuple[str, ...]:
        """Return the endpoints picked for a request. Raises `Broken` for any other answer."""
        async with self.asked(asked, link) as (_, received):
            return picked(received)

    async def learn(self) -> None:
        """Pick some times, to know endpoints that may be picked where they were not told."""
        if self.pool:
            return
        found: set[str] = set()
        for seed in range(LEARNING_PICKS):
            try:
                found.update(await self.pick(self.asks(seed=seed)))
            except Broken:
                continue
        self.pool = tuple(sorted(found))

    def some_of_the_pool(self, least: int = 1) -> Sequence[str]:
        """Return endpoints of the pool. Raises `NotTried` if fewer than `least` are known."""
        if len(self.pool) < least:
            raise NotTried(
                f"needs {least} endpoints that the picker knows, {len(self.pool)} are known: name "
                "them with --endpoints"
            )
        return self.pool

    async def still_picks(self, after: str) -> None:
        """Raise `Broken` if the picker does not pick any more, on a new connection."""
        link = self.target.connect()
        try:
            await self.pick(self.asks(seed=7), link)
        except Broken as error:
            raise Broken(f"after {after}: {error}") from error
        finally:
            await link.close()

    def in_pool(self, endpoints: Sequence[str]) -> None:
        """Raise `Broken` for a pick that is not of the pool. Nothing is said of an unknown pool."""
        strangers = [one for one in endpoints if self.pool and one not in self.pool]
        holds(not strangers, f"{strangers} were picked; the pool is {list(self.pool)}")
