"""Bodies that come slowly, or in very many pieces, beside those of others."""

import asyncio
import contextlib

import pytest

from kvmesh.transport.http.server.limits import HttpLimits
from tests.integration.http.peers import Client, Front
from tests.unit.transport.http.malformed import get, post

pytestmark = pytest.mark.integration

MB = 1 << 20


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_slow_bodies_may_not_hold_more_than_half_of_the_room(fronts: Front) -> None:
    limits = HttpLimits(max_total_body_bytes=4 * MB, body_window_s=1.0, min_body_bytes_per_s=1)
    server = await fronts.serve(lambda exchange: exchange.respond(200, b"{}"), limits=limits)
    holders = [await fronts.connect(server) for _ in range(3)]

    async def hold(client: Client) -> None:
        client.send(post(b"Content-Length: 3000000", body=b"x" * MB))
        while True:
            await asyncio.sleep(0.1)
            client.send(b"x" * 100)

    holding = [asyncio.create_task(hold(client)) for client in holders]
    answers = [asyncio.create_task(client.answer()) for client in holders]
    refused, _ = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
    other = await fronts.connect(server)
    other.send(post(b"Content-Length: %d" % (MB + MB // 2), body=b"x" * (MB + MB // 2)))

    assert {answer.result().status for answer in refused} == {408}
    assert (await other.answer()).status == 200
    for task in (*holding, *answers):
        task.cancel()
    await asyncio.gather(*holding, *answers, return_exceptions=True)


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_others_have_a_turn_between_the_chunks_of_one(fronts: Front) -> None:
    server = await fronts.serve(lambda exchange: exchange.respond(200, b"{}"))
    crowd, other = await fronts.connect(server), await fronts.connect(server)
    await other.ask(get(b"Host: a"))
    crowd.send(post(b"Transfer-Encoding: chunked", body=b"1\r\nx\r\n" * 2_000_000))

    asked = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(3):
            while True:
                assert (await other.ask(get(b"Host: a"))).status == 200
                asked += 1
                if asked == 20:
                    crowd.send(b"0\r\n\r\n")
                    assert (await crowd.answer()).status == 200
                    break

    assert asked >= 5
