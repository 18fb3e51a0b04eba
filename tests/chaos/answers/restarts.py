"""Two meta-routers restarted, together or in turn, while a server of the broker is away."""

import asyncio
import contextlib
import random
from collections import Counter
from pathlib import Path
from typing import Final, Literal

import httpx

from tests.chaos.answers.truth import Truth
from tests.chaos.clients import SHUT, Clients
from tests.chaos.mesh import ChaosMesh, MeshSize
from tests.chaos.process import MeshProcess, fixed_ports

SIZE: Final = MeshSize(servers=3, routers=2, ranks=(1, 1))
Fate = Literal["dead", "frozen", "well"]
Manner = Literal["killed", "stopped"]


class TwoFronts(Clients):
    """Clients that go to the other front door while one does not take their connection."""

    def __init__(self, doors: tuple[str, str], rng: random.Random, truth: Truth) -> None:
        super().__init__(doors[0], rng, truth, count=8)
        self.doors_die = True
        self._doors = doors
        self._draws = rng

    async def ask(self, url: str = "") -> str:
        del url
        doors = list(self._doors)
        self._draws.shuffle(doors)
        while True:
            for door in doors:
                outcome = await super().ask(door)
                if outcome != SHUT:
                    return outcome
                self.outcomes[outcome] -= 1
                self.wrong.pop()
            await asyncio.sleep(0.02)


class Restarts:
    """One mesh with a second front door; `outcomes` of each try, by what was asked for."""

    def __init__(self, folder: Path) -> None:
        self.mesh = ChaosMesh(folder, SIZE)
        (port,) = fixed_ports(1)
        arguments = ["meta-router", "--http-port", str(port), "--nats-url", self.mesh.nats_url]
        url = f"http://127.0.0.1:{port}"
        self.second = MeshProcess("front-1", url, arguments, folder / "front-1.log")

    async def start(self) -> None:
        await self.mesh.start()
        self.second.start()
        await self._ready()

    async def stop(self) -> None:
        self.second.kill()
        await self.mesh.stop()

    async def strike(
        self, number: int, fate: Fate, manner: Manner = "killed", *, in_turn: bool = False
    ) -> Counter[str]:
        """Restart both front doors beside a server that may be away; return what clients saw."""
        mesh, rng = self.mesh, random.Random(number)
        server = mesh.servers[number % len(mesh.servers)]
        truth = Truth(mesh.reference.url)
        clients = TwoFronts((mesh.front.url, self.second.url), rng, truth)
        clients.start()
        try:
            await asyncio.sleep(0.3)
            if fate != "well":
                server.kill() if fate == "dead" else server.freeze()
            await asyncio.sleep(rng.choice((0.0, 0.3, 2.0)))
            fronts = (mesh.front, self.second)
            for some in [(front,) for front in fronts] if in_turn else [fronts]:
                await asyncio.gather(*(_restart(front, manner) for front in some))
                await self._ready()
            await asyncio.sleep(0.5)
        finally:
            server.thaw()
            await mesh.start_server(server)
            await clients.close()
            await truth.close()
        assert not clients.wrong, clients.wrong
        # A client whose front door was killed under it sees that. Of one that is stopped it sees
        # nothing, unless it sends on an idle connection in the very moment in which that closes.
        seen = Counter({what: n for what, n in clients.outcomes.items() if n})
        return seen - Counter(cut=seen["cut"] if manner == "killed" else 1)

    async def _ready(self) -> None:
        async with asyncio.timeout(60), httpx.AsyncClient(timeout=2.0) as client:
            for front in (self.mesh.front, self.second):
                while True:
                    with contextlib.suppress(httpx.HTTPError):
                        if (await client.get(f"{front.url}/ready")).status_code == httpx.codes.OK:
                            break
                    await asyncio.sleep(0.05)


async def _restart(front: MeshProcess, manner: Manner) -> None:
    await asyncio.to_thread(front.kill if manner == "killed" else front.stop)
    front.start()
