"""Conversations that go on at whatever picker is there, and where their turns went."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import httpx

from tests.integration.picker.asking import Gateway, RefusedError, chat, serve
from tests.integration.picker.fleet import PickerFleet, PickerProcess

TOGETHER: Final = 2
LONG: Final = 120
"""Sentences: 220 blocks of 16 bytes, so that a prompt is worth its place."""

KNOWN_BLOCKS: Final = 200


class Asker(Protocol):
    """Sends a request where pickers say, and returns what they tell the client of it.

    Raises whatever breaks it.
    """

    async def __call__(self, body: bytes, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Send one chat."""
        ...


class AtPicker:
    """Asks one picker, as gateways do, on a connection of its own."""

    def __init__(self, fleet: PickerFleet, picker: PickerProcess) -> None:
        self._client = fleet.client
        self._gateway = Gateway(picker.address)
        fleet.gateways.append(self._gateway)

    async def __call__(self, body: bytes, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Send one chat."""
        return (await serve(self._gateway, self._client, body, headers))[1]


class ThroughGateway:
    """Sends to a gateway, which asks a picker of its choice."""

    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        self._url = url
        self._client = client

    async def __call__(self, body: bytes, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Send one chat."""
        names = {"content-type": "application/json", **headers}
        url = f"{self._url}/v1/chat/completions"
        answer = await self._client.post(url, content=body, headers=names)
        if answer.status_code != httpx.codes.OK or b"[DONE]" not in answer.content:
            raise RefusedError(answer.status_code, dict(answer.headers), answer.content)
        return answer.headers


class Conversation:
    """What one user said so far; `worker` answered last."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.turns = 0
        self.worker = ""
        self._text = f"{number} is where this one begins. " * LONG

    def say(self) -> bytes:
        """Return the body of the next turn, which begins as all before it."""
        self.turns += 1
        self._text += f"Question {self.turns}? "
        return chat(self._text, tokens=2)


class Crowd:
    """Conversations, and their turns by where they went: `kept` to the worker that has the rest,
    `moved` to another; of these the picker did not know of the rest in `unknown`. `why` explains
    them.
    """

    def __init__(self, fleet: PickerFleet, count: int) -> None:
        self._fleet = fleet
        self.all = [Conversation(number) for number in range(count)]
        self.kept = self.moved = self.unknown = 0
        self.why: list[str] = []

    async def go_on(self, askers: Sequence[Asker]) -> float:
        """Have each say something, by turns at these; return the share that was kept."""
        self.kept = self.moved = self.unknown = 0
        slots = asyncio.Semaphore(TOGETHER)

        async def turn(one: Conversation, ask: Asker) -> None:
            async with slots:
                await self._turn(one, ask)

        await asyncio.gather(
            *(turn(one, askers[at % len(askers)]) for at, one in enumerate(self.all))
        )
        return self.kept / (self.kept + self.moved)

    async def _turn(self, one: Conversation, ask: Asker) -> None:
        name = f"c{one.number}-{one.turns}"
        reported = await ask(one.say(), {"x-request-id": name})
        went = reported["x-kvmesh-worker"]
        if one.worker and went != one.worker:
            self.moved += 1
            await self._explain(name, reported["x-kvmesh-router"])
        else:
            self.kept += 1
        one.worker = went

    async def _explain(self, request_id: str, router: str) -> None:
        [url] = [picker.url for picker in self._fleet.pickers if picker.name == router]
        detail = (await self._fleet.client.get(f"{url}/v1/decisions/{request_id}")).json()
        decision = detail["decision"]
        self.unknown += decision["fleet"]["max_overlap_blocks"] < KNOWN_BLOCKS
        self.why.append(f"{detail['outcome']['why']}: {decision['candidates']}")


class Load:
    """Requests without end: how many were answered, and what broke the others."""

    def __init__(self, ask: Asker, together: int) -> None:
        self.answered = 0
        self.broken: list[str] = []
        self._ask = ask
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(together)]

    async def end(self) -> None:
        """Give up what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, number: int) -> None:
        turn = 0
        while True:
            turn += 1
            body = chat(f"{id(self)} {number} asks {turn}: " * 8, tokens=20)
            try:
                await self._ask(body, {})
                self.answered += 1
            except Exception as error:  # noqa: BLE001  whatever it was, it broke this request
                self.broken.append(repr(error))
                await asyncio.sleep(0.1)
