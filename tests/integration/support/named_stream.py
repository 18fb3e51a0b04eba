"""A client that names its stream, loses it, and asks for the rest."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import msgspec

from tests.integration.support.told_stream import Told

NAME = "x-kvmesh-stream-id"
KNOWN = "x-kvmesh-stream-events"


class Reader(msgspec.Struct):
    """What a client has of a stream. `events` are the data of those it counts."""

    name: str
    headers: Mapping[str, str] = {}
    events: list[str] = []
    ends: int = 0
    broken: bool = False

    @property
    def told(self) -> Told:
        told = Told(dones=self.ends, broken=self.broken)
        for one in self.events:
            told.take(f"data: {one}")
        return told

    def take(self, line: str) -> None:
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            self.ends += 1
        elif data != line and "error" not in json.loads(data):
            self.events.append(data)

    def lacks(self, events: int) -> Callable[[int], bool]:
        """Return what says whether so many more events are to be read."""
        until = len(self.events) + events
        return lambda count: count < until

    async def begin(
        self,
        client: httpx.AsyncClient,
        path: str,
        body: Mapping[str, Any],
        on_event: Callable[[int], object] = int,
    ) -> httpx.Response:
        """Ask for the stream and read it until its end, or until it breaks."""
        headers = {**self.headers, NAME: self.name}
        return await self._read(client, "POST", path, body, on_event, headers)

    async def resume(
        self,
        client: httpx.AsyncClient,
        on_event: Callable[[int], object] = int,
        after: int | None = None,
    ) -> httpx.Response:
        """Ask for the rest; what its routers do not know yet is let go and asked for, too."""
        after = len(self.events) if after is None else after
        path = f"/v1/streams/{self.name}?after={after}"
        answer = await self._read(client, "GET", path, None, on_event, self.headers)
        if answer.status_code == 409 and KNOWN in answer.headers:
            known = int(answer.headers[KNOWN])
            assert known < after
            del self.events[known:]
            return await self.resume(client, on_event)
        return answer

    async def _read(
        self,
        client: httpx.AsyncClient,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        on_event: Callable[[int], object],
        headers: Mapping[str, str],
    ) -> httpx.Response:
        self.broken = False
        async with client.stream(method, path, json=body, headers=headers) as answer:
            if answer.status_code != httpx.codes.OK:
                await answer.aread()
                return answer
            try:
                async for line in answer.aiter_lines():
                    self.take(line)
                    if on_event(len(self.events)) is False:
                        break
            except (httpx.RemoteProtocolError, httpx.ReadError):
                self.broken = True
            return answer
