"""Requests through a gateway whose answers are compared to the last byte."""

import asyncio
import random
from collections import Counter
from typing import Literal

import msgspec

from kvmesh.app.picker.envoy_options import Address
from tests.integration.gateway.endpoints import read_body, stream_of

Outcome = Literal["whole", "refused", "broken", "damaged"]
"""`refused`: another status than 200. `broken`: cut, as the client sees: it knows that something is
missing. `damaged`: ended as if it were whole, with other bytes than the endpoint sent."""

TIMEOUT_S = 60.0
SIZES = (400, 4_000, 8_000, 63_000, 64 * 1024, 250_000)
SHARES = (300, 300, 150, 5, 5, 3)
CHUNKS = (1, 8, 40, 200)
CONVERSATIONS = 40


class Asked(msgspec.Struct, frozen=True):
    """One request, and what the endpoint says to it."""

    seed: int
    body: bytes
    chunks: int

    def head(self) -> bytes:
        """Return the request's head."""
        stream = f"x-seed: {self.seed}\r\nx-chunks: {self.chunks}\r\n" if self.chunks else ""
        return (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\n{stream}"
            f"content-type: application/json\r\ncontent-length: {len(self.body)}\r\n\r\n"
        ).encode()

    def expected(self) -> bytes:
        """Return the bytes of the answer."""
        return b"".join(stream_of(self.seed, self.chunks)) if self.chunks else self.body


def plan(seed: int) -> Asked:
    """Return the request that `seed` stands for: three of four are streams."""
    rng = random.Random(seed)
    streams = rng.random() < 0.75
    size = rng.choices(SIZES, SHARES)[0]
    text = f"conversation {rng.randrange(CONVERSATIONS)} " * (size // 16) + str(seed)
    chat = {"model": "mock", "messages": [{"role": "user", "content": text}], "stream": streams}
    return Asked(seed, msgspec.json.encode(chat), rng.choice(CHUNKS) if streams else 0)


class Tally:
    """How the answers ended. `statuses` counts those of refusals, `damage` tells each damage.

    `unnamed`: whole answers whose worker no picker named: Envoy chose, or the picker died.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[Outcome] = Counter()
        self.statuses: Counter[int] = Counter()
        self.causes: Counter[str] = Counter()
        self.damage: list[str] = []
        self.unnamed = 0

    @property
    def total(self) -> int:
        return self.outcomes.total()

    def __str__(self) -> str:
        said = f"{dict(self.outcomes)}, refusals {dict(self.statuses)}, cut {dict(self.causes)}"
        said += f", named by no picker {self.unnamed}"
        return f"{self.total} answers: {said}" + "".join(f"\n{one}" for one in self.damage[:5])


class Client:
    """One connection to the gateway, opened anew whenever it ends."""

    def __init__(self, gateway: Address, tally: Tally) -> None:
        self._gateway = gateway
        self._tally = tally
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, asked: Asked) -> Outcome:
        """Send it, read the answer to its end, count how it ended."""
        outcome: Outcome = "broken"
        try:
            async with asyncio.timeout(TIMEOUT_S):
                outcome = await self._ask(asked)
        except (OSError, EOFError, TimeoutError) as error:
            self._tally.causes[type(error).__name__] += 1
            self.close()
        self._tally.outcomes[outcome] += 1
        return outcome

    async def _ask(self, asked: Asked) -> Outcome:
        if self._reader is None or self._writer is None:
            host, port = self._gateway.host, self._gateway.port
            self._reader, self._writer = await asyncio.open_connection(host, port, limit=1 << 20)
        self._writer.write(asked.head() + asked.body)
        status, headers = await read_head(self._reader)
        body = await read_body(self._reader, headers)
        if headers.get("connection") == "close":
            self.close()
        if status != 200:
            self._tally.statuses[status] += 1
            return "refused"
        if body == asked.expected():
            self._tally.unnamed += "x-kvmesh-worker" not in headers
            return "whole"
        reported = f"seed {asked.seed}: {len(body):,} bytes in place of {len(asked.expected()):,}"
        self._tally.damage.append(f"{reported}, served by {headers.get('x-served-by')}")
        return "damaged"

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines[1:] if line)
    return int(lines[0].split(" ")[1]), {name.lower(): value.strip() for name, _, value in pairs}


async def load(gateway: Address, seeds: range, clients: int, tally: Tally) -> None:
    """Send the requests of `seeds`, `clients` at a time."""
    left = iter(seeds)

    async def one() -> None:
        client = Client(gateway, tally)
        for seed in left:
            await client.ask(plan(seed))
        client.close()

    await asyncio.gather(*(one() for _ in range(clients)))
