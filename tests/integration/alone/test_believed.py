"""A prompt is believed cached where it was served: what failed or was given up leaves nothing."""

import asyncio

import pytest

from tests.integration.http.peers import JSON, Turn, Upstream, answer
from tests.integration.support.live_router import COMPLETION, MODELS, client_of, router

pytestmark = pytest.mark.integration

PROMPT = "What this client asks again and again. " * 20


# A priority goes the long way, a plain request through the compiled calls.
@pytest.mark.parametrize("headers", [{}, {"x-kvmesh-priority": "1"}])
async def test_only_what_was_served_is_believed_cached(headers: dict[str, str]) -> None:
    status, asked = 200, asyncio.Event()

    async def script(turn: Turn) -> None:
        if turn.head.startswith(b"GET"):
            turn.send(answer(MODELS, JSON))
            return
        asked.set()
        if status:
            turn.send(answer(COMPLETION, JSON, status=b"%d x" % status))

    body = {"model": "mock", "prompt": PROMPT, "max_tokens": 1}
    async with (
        Upstream.running(script) as engine,
        client_of(router([engine.origin], parity_sample=0)) as client,
    ):

        async def overlap() -> int:
            found: int = (await client.post("/v1/route", json=body)).json()["overlap_blocks"]
            return found

        async def send() -> int:
            return (await client.post("/v1/completions", json=body, headers=headers)).status_code

        status = 400
        assert [await send() for _ in range(3)] == [400, 400, 400]
        after_400 = await overlap()

        status = 0
        asked.clear()
        hung = asyncio.create_task(send())
        await asked.wait()
        in_flight = await overlap()
        hung.cancel()
        async with asyncio.timeout(30):
            left = await overlap()
            while left:  # the router has yet to see that its client left
                left = await overlap()

        status = 200
        assert await send() == 200
        served = await overlap()

    assert after_400 == 0
    assert in_flight == served == len(PROMPT) // 16
