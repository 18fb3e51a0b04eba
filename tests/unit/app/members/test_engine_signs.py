import asyncio
import random
from math import inf

import pytest

from kvmesh.actors.messages import WorkerHeartbeat, WorkerLoad, WorkerSeen
from kvmesh.actors.router import Router
from kvmesh.app.members.engine_signs import EngineSigns
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import SERVED
from kvmesh.core.members.progress import Due
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.transport.http.fetch import fetch
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer
from kvmesh.transport.http.upstream.client import UpstreamPool
from tests.conftest import Eventually

pytestmark = pytest.mark.integration

W = WorkerId("w")


def make_router() -> Router:
    sequences = new_sequences(block_size=16)
    scheduler = Scheduler(
        RouterOptions(), random.Random(1), membership=Membership(), sequences=sequences
    )
    scheduler.workers.membership.add(W, 0.0)
    return Router(scheduler, 16)


def see(router: Router, url: str, computed: int, now: float) -> None:
    beat = WorkerHeartbeat(
        worker=W,
        bucket="b",
        epoch=1,
        last_seq=0,
        url=url,
        models=(),
        block_size=16,
        load=WorkerLoad(running_requests=1, computed_tokens=computed),
    )
    router.receive(WorkerSeen(beat), now)


async def test_figures_and_answers_show_that_an_engine_works() -> None:
    router, pool = make_router(), UpstreamPool()
    now = 100.0
    signs = EngineSigns(router, pool, lambda: now)
    assert signs.shown_s(W) == 0.0

    for second in range(93, 101):
        see(router, "http://127.0.0.1:1", 500, float(second))
    assert signs.shown_s(W) == 93.0
    assert signs.is_stalled(W, [Due(0.0)])

    router.scheduler.workers.note(W, SERVED, 98.0)
    assert signs.shown_s(W) == 98.0
    assert not signs.is_stalled(W, [Due(0.0)])
    await pool.close()


async def test_bytes_of_an_answer_under_way_show_it_too(eventually: Eventually) -> None:
    go_on = asyncio.Event()

    def stream(exchange: Exchange) -> None:
        async def write() -> None:
            exchange.start(200, ((b"content-type", b"text/event-stream"),))
            exchange.write(b"data: {}\n\n")
            await go_on.wait()
            exchange.end()

        exchange.scope.start(write())

    server, pool, router = HttpServer(stream), UpstreamPool(), make_router()
    await server.start("127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.port}"
    clock = asyncio.get_running_loop().time
    signs = EngineSigns(router, pool, clock)
    see(router, url, 500, clock())
    assert pool.quiet_s(url) == inf

    asked = asyncio.create_task(fetch(pool, url, "/", timeout_s=60.0))
    await eventually(lambda: pool.quiet_s(url) < inf)
    assert pool.quiet_s(url) < 30.0
    assert signs.shown_s(W) > 0.0

    go_on.set()
    assert (await asked)[0] == 200
    assert pool.quiet_s(url) == inf, "what has ended is no answer under way"
    await pool.close()
    await server.close()
