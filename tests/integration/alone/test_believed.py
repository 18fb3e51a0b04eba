"""A prompt is believed cached where it was served: what failed or was given up leaves nothing."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from tests.integration.support.live_router import client_of, router

pytestmark = pytest.mark.integration

WHOLE = json.dumps(
    {
        "model": "mock",
        "choices": [{"index": 0, "text": "m", "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
).encode()
PROMPT = "What this client asks again and again. " * 20


class Engine:
    """Answers `status` to completions, and nothing at all while `status` is 0."""

    def __init__(self) -> None:
        self.status = 200
        self.asked = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length or 0))
                status, body = 200, b'{"data": [{"id": "mock"}]}'
                if head.startswith(b"POST"):
                    self.asked.set()
                    status, body = self.status, WHOLE
                if status:
                    writer.write(
                        b"HTTP/1.1 %d x\r\ncontent-type: application/json\r\n"
                        b"content-length: %d\r\n\r\n%b" % (status, len(body), body)
                    )
        writer.close()


@pytest.fixture
async def engine() -> AsyncIterator[tuple[Engine, str]]:
    one = Engine()
    async with await asyncio.start_server(one.serve, "127.0.0.1", 0) as server:
        yield one, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


# A priority goes the long way, a plain request through the compiled calls.
@pytest.mark.parametrize("headers", [{}, {"x-kvmesh-priority": "1"}])
async def test_only_what_was_served_is_believed_cached(
    engine: tuple[Engine, str], headers: dict[str, str]
) -> None:
    one, url = engine
    body = {"model": "mock", "prompt": PROMPT, "max_tokens": 1}
    async with client_of(router([url], parity_sample=0)) as client:

        async def overlap() -> int:
            found: int = (await client.post("/v1/route", json=body)).json()["overlap_blocks"]
            return found

        async def send() -> int:
            return (await client.post("/v1/completions", json=body, headers=headers)).status_code

        one.status = 400
        assert [await send() for _ in range(3)] == [400, 400, 400]
        after_400 = await overlap()

        one.status, one.asked = 0, asyncio.Event()
        hung = asyncio.create_task(send())
        await one.asked.wait()
        in_flight = await overlap()
        hung.cancel()
        async with asyncio.timeout(30):
            left = await overlap()
            while left:  # the router has yet to see that its client left
                left = await overlap()

        one.status = 200
        assert await send() == 200
        served = await overlap()

    assert after_400 == 0
    assert in_flight == served == len(PROMPT) // 16
