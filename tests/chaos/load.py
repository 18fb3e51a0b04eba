"""Clients of every door of a mesh at once: was all answered in full?"""

import asyncio
import random

from tests.chaos.answers.truth import Truth
from tests.chaos.clients import Clients
from tests.chaos.mesh import ChaosMesh
from tests.chaos.process import MeshProcess

Outcomes = dict[str, dict[str, int]]
"""How often each end was seen, by the door's name."""


class Load:
    """Two clients of each router and two of the front door."""

    def __init__(self, mesh: ChaosMesh) -> None:
        self._truth = Truth(mesh.reference.url)
        self._doors: list[tuple[MeshProcess, Clients]] = [
            (door, Clients(door.url, random.Random(number), self._truth, count=2))
            for number, door in enumerate((mesh.front, *mesh.routers))
        ]

    def start(self) -> None:
        for _, clients in self._doors:
            clients.outcomes.clear()
            clients.start()

    async def stop(self) -> Outcomes:
        """Let every client finish its request; return what they saw since `start`."""
        await asyncio.gather(*(clients.stop() for _, clients in self._doors))
        return {door.name: dict(clients.outcomes) for door, clients in self._doors}

    async def during(self, seconds: float) -> Outcomes:
        """Let everybody ask for so long; return what they saw."""
        self.start()
        await asyncio.sleep(seconds)
        return await self.stop()

    async def close(self) -> None:
        await asyncio.gather(*(clients.close() for _, clients in self._doors))
        await self._truth.close()


def failed(outcomes: Outcomes) -> Outcomes:
    """Return the doors whose clients got less than whole answers."""
    return {door: seen for door, seen in outcomes.items() if seen.keys() != {"whole"}}
