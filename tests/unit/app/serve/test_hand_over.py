"""What a worker that leaves keeps alone is computed elsewhere before it is gone."""

import asyncio
import contextlib
from math import inf

import msgspec
import pytest

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.app.serve.hand_over import AGAIN_S
from kvmesh.app.serve.prefix_sender import MOST_FAILED, SentFigures
from kvmesh.core.blocks.events import ROOT, Stored
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.buckets.placing import rendezvous
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.loads import Demand
from kvmesh.core.members.worker_info import LoadReport, WorkerInfo
from kvmesh.core.routing.booking_events import Ended
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.peer_records import PlacedRecord, read_records
from kvmesh.core.routing.sessions import Affinity, SessionOptions, Sessions
from tests.unit.app.serve.test_routed import W1, W2
from tests.unit.app.serve.test_toucher import ANSWER, engine
from tests.unit.app.serve.test_warmer import BLOCKS, HELD, W3, Warm

LIVE = 3


def hashes_of(which: int) -> BlockHashes:
    return BlockHashes.of([which * 1000 + n for n in range(BLOCKS)], 16)


class Leaving(Warm):
    """A router of three workers, of which `W3` drains and alone keeps prompts 2 to 4; the engine of
    the others is at `url`.
    """

    def __init__(self, url: str = "http://127.0.0.1:1", *, kept: int = 3) -> None:
        super().__init__(url)
        self.scheduler = self.routing.scheduler
        self.hand_over = self.warmer.leaving.hand_over
        for which in range(2, 2 + kept):
            self.keep(which, model="m")
        self.come()
        self.join()
        self.warmer.newcomers.waiting.clear()
        for worker in (W1, W2):
            beat = WorkerHeartbeat(worker, "b", 1, 0, url, ("m",), 16)
            self.context.router.heartbeats[worker] = beat
            self.context.workers.report(worker, LoadReport(total_blocks=10_000))
        for which in range(2, 2 + kept):
            self.scheduler.overlaps.record(W3, hashes_of(which), self.routing.now)
        self.warmer._handing.allowance.earn(HELD, 1, HELD)
        self.drain()

    def drain(self, *, draining: bool = True) -> None:
        self.scheduler.workers.membership.hold(W3, draining=draining)

    def held(self, which: int) -> dict[str, int]:
        found = self.scheduler.overlaps.find(hashes_of(which), self.routing.now).overlaps
        return {one: blocks for one, blocks in found.items() if one != W3}

    def figures(self) -> SentFigures:
        return self.warmer.figures().handed_over


@pytest.mark.integration
async def test_each_prompt_is_computed_where_its_next_request_goes() -> None:
    asked: list[bytes] = []
    async with engine(b"200 OK", ANSWER, asked) as url:
        leaving = Leaving(url)
        assert leaving.warmer.leaving.look(["r1"]) == [W3]

        await leaving.hand_over(W3)
        await leaving.pool.close()

    assert leaving.figures() == SentFigures(3, 0, 12)
    assert len(asked) == 3
    homes = [leaving.held(which) for which in range(2, 5)]
    assert all([*one.values()] == [BLOCKS] for one in homes)
    assert {worker for one in homes for worker in one} == {W1, W2}
    assert not leaving.scheduler.sequences.bookings
    told = [
        type(event)
        for message in leaving.routing.noted.outbox.take(1 << 20, 1 << 20)
        for event in read_records("", message).events
    ]
    assert (told.count(PlacedRecord), told.count(Ended)) == (3, 3)
    assert leaving.warmer.leaving.look(["r1"]) == []
    leaving.routing.now += AGAIN_S
    assert leaving.warmer.leaving.look(["r1"]) == [W3]


@pytest.mark.parametrize("affinity", ["hard", "soft"])
async def test_a_session_follows_its_prefix(affinity: Affinity) -> None:
    leaving = Leaving(kept=1)
    sessions = leaving.scheduler.sessions = Sessions(SessionOptions(affinity=affinity))
    sessions.bind("s", W3, leaving.routing.now)
    leaving.scheduler.overlaps.record(W2, hashes_of(2), leaving.routing.now)
    request = RouteRequest("next", hashes_of(2), BLOCKS * 16, model="m", session="s")

    placed = leaving.scheduler.schedule(request, leaving.routing.now)
    await leaving.pool.close()

    assert (placed.record.worker, sessions.find("s", leaving.routing.now)) == (W2, W2)


async def test_what_fails_thrice_in_a_row_is_left_until_later() -> None:
    leaving = Leaving(kept=6)

    await leaving.hand_over(W3)
    await leaving.pool.close()

    assert leaving.figures() == SentFigures(0, MOST_FAILED, 0)
    assert not leaving.scheduler.sequences.bookings


@pytest.mark.integration
async def test_a_prefix_is_fetched_from_the_worker_that_leaves() -> None:
    asked: list[bytes] = []
    label = frozenset({"kvmesh/fetch/offloading/5711"})
    async with engine(b"200 OK", ANSWER, asked) as url:
        leaving = Leaving(url, kept=1)
        beats = leaving.context.router.heartbeats
        for worker in (W1, W2, W3):
            leaving.context.workers.describe(worker, WorkerInfo(total_blocks=10_000, labels=label))
            beats[worker] = msgspec.structs.replace(beats[worker], labels=tuple(label))
        index = leaving.scheduler.overlaps.index = KvIndex()
        index.apply(W3, Stored(ROOT, pack_hashes([2000 + n for n in range(BLOCKS)])))

        await leaving.hand_over(W3)
        await leaving.pool.close()

    body = msgspec.json.decode(asked[0].partition(b"\r\n\r\n")[2])
    assert body["kv_transfer_params"]["remote_kv_source"]["remote_port"] == 5711


async def test_nothing_is_sent_without_a_budget() -> None:
    leaving = Leaving()
    leaving.warmer._handing.allowance.spend(1 << 30)

    await leaving.hand_over(W3)
    await leaving.pool.close()

    assert leaving.figures() == SentFigures(0, 0, 0)


async def test_what_a_request_brought_elsewhere_meanwhile_is_passed_over() -> None:
    leaving = Leaving(kept=1)
    plan = await leaving.warmer.leaving._plan(W3)
    assert [tokens for _, tokens in plan] == [BLOCKS * 16]

    async def planned(_: object) -> object:
        leaving.scheduler.overlaps.record(W1, hashes_of(2), leaving.routing.now)
        return plan

    leaving.warmer.leaving._plan = planned  # type: ignore[assignment,method-assign]
    await leaving.hand_over(W3)
    await leaving.pool.close()

    assert leaving.figures() == SentFigures(0, 0, 0)


async def test_nobody_is_handed_what_nobody_may_serve() -> None:
    leaving = Leaving(kept=1)
    ((prompt, _),) = await leaving.warmer.leaving._plan(W3)
    for worker in (W1, W2):
        leaving.scheduler.workers.membership.hold(worker, draining=True)

    assert await leaving.warmer.leaving._choose(W3, prompt, inf) is None
    assert await leaving.warmer.leaving._plan(W3) == []
    await leaving.pool.close()


async def test_it_waits_for_an_idle_worker_as_long_as_the_leaver_is_there() -> None:
    leaving = Leaving()
    for number, worker in enumerate((W1, W2)):
        demand = Demand(100_000, 100_000)
        leaving.scheduler.sequences.add(f"busy {number}", worker, demand, leaving.routing.now)

    task = asyncio.ensure_future(leaving.hand_over(W3))
    leaving.warmer.leaving.look(["r1"])
    await asyncio.sleep(0.3)
    assert not task.done()
    assert leaving.warmer.leaving._next_s == {W3: inf}
    leaving.drain(draining=False)
    assert leaving.warmer.leaving.look(["r1"]) == []
    async with asyncio.timeout(5):
        await task
    await leaving.pool.close()

    assert leaving.figures() == SentFigures(0, 0, 0)
    assert leaving.warmer.leaving._next_s == {}


async def test_routers_that_do_not_look_at_caches_hand_nothing_over() -> None:
    leaving = Leaving()
    options = leaving.scheduler.options
    leaving.scheduler.options = type(options)(mode="round-robin")

    assert leaving.warmer.leaving.look(["r1"]) == []
    await leaving.pool.close()


async def test_losses_are_foretold_now_and_then() -> None:
    leaving = Leaving()
    leaving.drain(draining=False)

    await leaving.warmer.foretell()
    first = leaving.warmer.alone_tokens
    await leaving.warmer.foretell()
    await leaving.pool.close()

    assert 0 < first[W3] <= 3 * BLOCKS * 16
    assert leaving.warmer.alone_tokens is first


async def test_what_was_planned_is_sent_though_the_leaver_is_gone_but_not_for_long() -> None:
    leaving = Leaving(kept=1)
    hand = leaving.warmer.leaving
    ((prompt, _),) = await hand._plan(W3)
    leaving.scheduler.workers.membership.remove(W3)

    home = await hand._choose(W3, prompt, leaving.routing.now + 1.0)
    late = await hand._choose(W3, prompt, leaving.routing.now)
    assert hand.look(["r1"]) == []
    await leaving.hand_over(W3)
    await leaving.pool.close()

    assert home is not None
    assert home.worker in (W1, W2)
    assert late is None


async def test_each_replica_begins_with_its_own_beginnings_and_sends_the_rest_then() -> None:
    leaving = Leaving(kept=12)
    replicas = ["r0", "r1"]
    hand = leaving.warmer.leaving

    hand.look(replicas)
    first = await hand._plan(W3)
    rest = await hand._plan(W3)
    leaving.drain(draining=False)
    hand.look(replicas)
    leaving.drain()
    hand.look(replicas)
    again = await hand._plan(W3)
    await leaving.pool.close()

    own = [one for one, _ in rest if rendezvous(replicas, one.marks[0]) == "r1"]
    assert 0 < len(own) < len(rest) == 12
    assert {one.marks for one, _ in first} == {one.marks for one in own}
    assert len(again) == len(first)


@pytest.mark.integration
async def test_it_hands_over_for_ever() -> None:
    asked: list[bytes] = []
    async with engine(b"200 OK", ANSWER, asked) as url, asyncio.timeout(30):
        leaving = Leaving(url)
        task = asyncio.ensure_future(leaving.warmer.run())
        while leaving.figures().sent < LIVE:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.01)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await leaving.pool.close()

    assert len(asked) == LIVE
