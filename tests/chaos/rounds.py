"""A round: load, faults from a seed, healing, rest, and then everything must be right again."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path

import httpx

from tests.chaos.answers.truth import Truth
from tests.chaos.clients import PLAIN, Clients, Prompts
from tests.chaos.mesh import ChaosMesh, MeshSize
from tests.chaos.oracle import differences
from tests.chaos.storm import KINDS, ROUTE_KINDS, Fault, Storm, draw_faults
from tests.chaos.witness import Witness

POLL_S = 0.2
STORM_S = 4.0
CALM_S = 60.0


@contextlib.asynccontextmanager
async def witnessed(mesh: ChaosMesh) -> AsyncGenerator["Rounds"]:
    """Yield rounds upon a mesh that runs."""
    witness = Witness()
    try:
        await witness.start(mesh.nats_url)
        rounds = Rounds(mesh, witness)
        try:
            yield rounds
        finally:
            await rounds.close()
    finally:
        await witness.close()


@contextlib.asynccontextmanager
async def running_rounds(folder: Path, size: MeshSize) -> AsyncGenerator["Rounds"]:
    """Yield rounds upon a mesh of their own."""
    mesh = ChaosMesh(folder, size)
    try:
        await mesh.start()
        async with witnessed(mesh) as rounds:
            yield rounds
    finally:
        await mesh.stop()


class Rounds:
    """Rounds upon one mesh, which lives on from round to round."""

    def __init__(self, mesh: ChaosMesh, witness: Witness) -> None:
        self.mesh = mesh
        self.witness = witness
        self.seeds: list[int] = []
        self.history: list[str] = []
        self.outcomes = Counter[str]()
        self._truth = Truth(mesh.reference.url)

    async def close(self) -> None:
        await self._truth.close()

    async def run(self, seed: int, plan: Sequence[Fault] = (), *, rest_s: float = 120.0) -> str:
        """Run one round; return it in one line, or fail with all there is to know.

        Without a `plan` its faults are drawn from the seed, as the clients' requests are.
        """
        rng = random.Random(seed)
        kinds = (*KINDS, *ROUTE_KINDS) if self.mesh.size.servers > 1 else KINDS
        plan = plan or draw_faults(rng, 1 + seed % 4, STORM_S, kinds)
        told = await self.play(seed, rng, lambda storm: storm.rage(plan), rest_s=rest_s)
        return f"seed {seed}: {len(plan)} faults; {told}"

    async def play(
        self,
        seed: int,
        rng: random.Random,
        happen: Callable[[Storm], Awaitable[None]],
        *,
        rest_s: float = 120.0,
        prompts: Prompts = PLAIN,
    ) -> str:
        """Have something happen under load, as `run` does; `happen` reports what to the storm."""
        self.seeds.append(seed)
        clients = Clients(self.mesh.front.url, rng, self._truth, prompts=prompts)
        storm = Storm(self.mesh)
        clients.start()
        try:
            await asyncio.sleep(0.5)
            await happen(storm)
            await self.mesh.heal()
            healed_s = time.monotonic()
            await clients.stop()
            wrong = await self._rest(rest_s)
            agreed_s = time.monotonic() - healed_s
            if not wrong:
                wrong = await self._ask_everybody(clients)
        finally:
            await clients.close()
        self.outcomes += clients.outcomes
        self.history = storm.history
        if wrong or clients.wrong:
            self._fail(storm, clients, wrong)
        outcomes = ", ".join(f"{count} {what}" for what, count in sorted(clients.outcomes.items()))
        return (
            f"agreed {agreed_s:.1f} s after healing; {outcomes}; "
            f"{self.witness.events} events, {self.witness.position} records"
        )

    async def _rest(self, rest_s: float) -> list[str]:
        """Wait until nothing is wrong; return what still is at the end."""
        deadline_s = time.monotonic() + rest_s
        async with httpx.AsyncClient(timeout=30.0) as client:
            while True:
                wrong = await differences(self.mesh, self.witness, client)
                if not wrong or time.monotonic() > deadline_s:
                    return wrong
                await asyncio.sleep(POLL_S)

    async def _ask_everybody(self, clients: Clients) -> list[str]:
        """Ask each door until it answers three times in a row as it should: at rest it must."""
        found: list[str] = []
        for door in (self.mesh.front, *self.mesh.routers):
            deadline_s = time.monotonic() + CALM_S
            outcomes: list[str] = []
            while outcomes[-3:] != ["whole"] * 3 and time.monotonic() < deadline_s:
                outcomes.append(await clients.ask(door.url))
            if outcomes[-3:] != ["whole"] * 3:
                found.append(f"after the storm {door.name} answers {outcomes[-20:]}")
        return found

    def _fail(self, storm: Storm, clients: Clients, wrong: list[str]) -> None:
        lines = [
            f"seed {self.seeds[-1]} (rounds on this mesh: {self.seeds})",
            *storm.history,
            f"outcomes: {dict(clients.outcomes)}",
            *(f"WRONG ANSWER: {what}" for what in clients.wrong),
            *(f"WRONG AT REST: {what}" for what in wrong),
            self.mesh.last_words(),
        ]
        raise AssertionError("\n".join(lines))
