"""Which prompts are kept for newcomers, which are sent to them, and when that ends."""

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

from kvmesh.actors.messages import RouterHeartbeat, WorkerHeartbeat
from kvmesh.app.serve.prefix_sender import MOST_FAILED, SentFigures
from kvmesh.app.serve.prompt_keeper import AT_ONCE, MOST_FRESH
from kvmesh.app.serve.warmer import Warmer, warmer_of
from kvmesh.core.blocks.events import ROOT, Stored, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.dispatch.dispatched import Dispatched, as_read, at_once
from kvmesh.core.dispatch.wishes import Wishes
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.worker_info import LoadReport, WorkerInfo
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.warming.kept_prompts import KeptOptions
from kvmesh.core.warming.newcomers import WarmOptions
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.upstream.client import UpstreamPool
from tests.unit.app.serve.test_routed import W1, W2, Routing
from tests.unit.app.serve.test_toucher import ANSWER, engine

W3 = WorkerId("w3")
CHAT = "/v1/chat/completions"
BLOCKS = 64
HELD = 100_000
RETURNS = 5


def sibling(name: str, **more: Any) -> RouterHeartbeat:
    return RouterHeartbeat(router=name, bucket="b", url="http://r", ready=True, epoch=1, **more)


class Warm:
    """A router of two workers with full caches, where another joins whose engine is at `url`."""

    def __init__(self, url: str = "http://127.0.0.1:1", share: float = 0.5) -> None:
        self.routing = Routing()
        self.context = self.routing.context
        self.siblings: list[RouterHeartbeat] = []
        self.pool = UpstreamPool()
        self.asks: list[tuple[Dispatched, Request]] = []
        made = warmer_of(share, self.context, lambda: self.siblings, self.pool)
        assert made is not None
        self.warmer: Warmer = made
        self.warmer.screen()
        scheduler = self.routing.scheduler
        for worker in (W1, W2):
            scheduler.workers.describe(worker, WorkerInfo(total_blocks=10_000))
            scheduler.overlaps.record(worker, BlockHashes.of([*range(1, 1001)], 16), 100.0)
        scheduler.workers.everyone(100.0)
        self.context.router.heartbeats[W3] = WorkerHeartbeat(W3, "b", 1, 0, url, (), 16)

    def keep(self, which: int, path: str = CHAT, body: bytes = b"{}", **wishes: Any) -> None:
        """Note a prompt that clients send."""
        hashes = BlockHashes.of([which * 1000 + n for n in range(BLOCKS)], 16)
        request = RouteRequest(f"r{which}", hashes, BLOCKS * 16, **wishes)
        asked = Request("POST", path.encode(), ((b"cookie", b"c"),), body, path)
        self.asks.append((as_read(request, b"r"), asked))

    def come(self) -> None:
        """Have what is kept asked for again and again, which it will be once more."""
        for _ in range(RETURNS):
            self.routing.now += 40.0
            for one, asked in self.asks:
                self.warmer.keep(one, asked)
            self.warmer.keeper.take_in()
            self.warmer.look()

    def computed(self, tokens: int = HELD) -> None:
        """Have requests computed so many tokens, of which a share may be spent."""
        self.warmer.allowance.earn(tokens, 1, tokens)

    def join(self, blocks: int = 10_000) -> None:
        membership, workers = self.routing.scheduler.workers.membership, self.context.workers
        membership.add(W3, self.routing.now)
        workers.report(W3, LoadReport(total_blocks=blocks))
        workers.everyone(self.routing.now)


async def test_prompts_that_came_are_planned_for_who_joins() -> None:
    warm = Warm()
    for which in range(2, 5):
        warm.keep(which)
    warm.come()
    warm.computed()
    warm.join()

    assert warm.warmer.look() == [W3]
    assert [tokens for _, tokens in await warm.warmer._plan(W3)] == [BLOCKS * 16] * 3
    figures = warm.warmer.figures()
    assert (figures.prompts, figures.waiting, figures.warmed.tokens) == (3, 1, 0)
    assert figures.prompt_bytes == 3 * (2 + 8 * BLOCKS + 512)
    await warm.pool.close()


@pytest.mark.parametrize(
    "unlike",
    [
        {"path": "/v1/embeddings"},
        {"estimated": True},
        {"pinned_worker": W1},
        {"labels": frozenset({"eu"})},
        {"body": b" " * (KeptOptions().most_bytes_each + 1)},
    ],
)
async def test_what_may_not_go_everywhere_is_not_kept(unlike: dict[str, Any]) -> None:
    warm = Warm()

    warm.keep(2, **unlike)
    warm.come()

    assert not len(warm.warmer.keeper.kept)
    await warm.pool.close()


@pytest.mark.parametrize(("wished", "kept"), [({}, 1), ({"labels": frozenset({"eu"})}, 0)])
async def test_what_was_placed_at_once_is_kept_unless_it_asked_for_workers(
    wished: dict[str, Any], kept: int
) -> None:
    warm = Warm()
    hashes = BlockHashes.of([*range(5000, 5000 + BLOCKS)], 16)
    request = RouteRequest("q", hashes, BLOCKS * 16, model="m")
    placed = warm.routing.scheduler.schedule(request, 100.0)
    one = at_once(placed, Wishes(**wished), None)

    warm.warmer.keep(one, Request("POST", CHAT.encode(), (), b"{}", CHAT))
    warm.warmer.keeper.take_in()

    assert [one.what.model for one in warm.warmer.keeper.kept.prompts()] == [placed.model] * kept
    await warm.pool.close()


async def test_no_prompt_is_sent_to_who_does_not_serve_its_model() -> None:
    warm = Warm()
    warm.keep(2, model="other")
    warm.keep(3, model="m")
    warm.come()
    warm.computed()
    warm.context.workers.describe(W3, WorkerInfo(models=("m",), total_blocks=10_000))
    warm.join()

    assert [one.what.model for one, _ in await warm.warmer._plan(W3)] == ["m"]
    await warm.pool.close()


async def test_an_engine_that_has_not_reported_its_size_is_taken_for_the_smallest() -> None:
    warm = Warm()
    for which in range(2, 5):
        warm.keep(which)
    warm.come()
    warm.computed()
    warm.join(blocks=0)
    assert len(await warm.warmer._plan(W3)) == 3

    warm.context.workers.report(W2, LoadReport(total_blocks=2 * BLOCKS))
    assert len(await warm.warmer._plan(W3)) == 1

    for worker in (W1, W2):
        warm.context.workers.report(worker, LoadReport(total_blocks=0))
        warm.context.workers.describe(worker, WorkerInfo())
    assert await warm.warmer._plan(W3) == []
    await warm.pool.close()


async def test_what_a_newcomer_has_already_is_not_planned() -> None:
    warm = Warm()
    warm.keep(2)
    warm.come()
    warm.computed()
    warm.join()
    held = BlockHashes.of([2000 + n for n in range(BLOCKS)], 16)
    warm.routing.scheduler.overlaps.record(W3, held, warm.routing.now)

    assert await warm.warmer._plan(W3) == []
    await warm.pool.close()


@pytest.mark.parametrize(
    ("own", "other", "draining", "sends"),
    [
        ((1, 5), (2, 5), False, True),
        ((2, 5), (1, 5), False, False),
        ((2, 5), (1, 0), False, True),  # a picker, or who has just started
        ((2, 5), (1, 5), True, True),
    ],
)
async def test_of_replicas_that_keep_prompts_the_one_that_runs_longest_sends(
    own: tuple[int, int], other: tuple[int, int], draining: bool, sends: bool
) -> None:
    warm = Warm()
    warm.keep(2)
    warm.come()
    warm.computed()
    warm.join()
    mine, theirs = sibling("r1"), sibling("r0", draining=draining)
    warm.siblings = [
        msgspec.structs.replace(mine, epoch=own[0], prompts=own[1]),
        msgspec.structs.replace(theirs, epoch=other[0], prompts=other[1]),
    ]

    assert warm.warmer.look() == ([W3] if sends else [])
    assert warm.context.router.kept_prompts == 1
    await warm.pool.close()


async def test_an_engine_that_was_down_is_a_newcomer_again() -> None:
    warm = Warm()
    warm.keep(2)
    warm.come()
    warm.computed()
    warm.join()
    warm.warmer.newcomers.done(W3)
    membership = warm.routing.scheduler.workers.membership
    assert warm.warmer.look() == []

    found = []
    for ready in (False, True):
        membership.observe(W3, 0, warm.routing.now, ready=ready)
        warm.context.workers.everyone(warm.routing.now)
        found.append(warm.warmer.look())

    assert found == [[], [W3]]
    await warm.pool.close()


async def test_what_another_replica_has_computed_is_spent() -> None:
    warm = Warm()
    warm.keep(2)
    warm.come()
    warm.computed()
    warm.join()
    warm.siblings = [sibling("r0", prompts=1)]
    warm.warmer.look()
    warm.routing.scheduler.overlaps.record(W3, BlockHashes.of([*range(40)], 16), warm.routing.now)

    warm.warmer.look()

    assert warm.warmer.allowance.tokens == HELD / 2 - 40 * 16
    await warm.pool.close()


async def test_a_newcomer_computes_what_is_planned_and_serves() -> None:
    asked: list[bytes] = []
    async with engine(b"200 OK", ANSWER, asked) as url:
        warm = Warm(url)
        body = b'{"model":"m","messages":[],"max_tokens":90,"stream":true,"cache_salt":"s"}'
        warm.keep(2, body=body)
        warm.keep(3)
        warm.come()
        warm.computed()
        warm.join()
        assert warm.context.workers.everyone(warm.routing.now) == (W1, W2)

        await warm.warmer.warm(W3)
        await warm.pool.close()

    assert warm.context.workers.everyone(warm.routing.now) == (W1, W2, W3)
    figures = warm.warmer.figures()
    assert (figures.warmed, figures.waiting) == (SentFigures(2, 0, 8), 0)
    sent = [msgspec.json.decode(one.partition(b"\r\n\r\n")[2]) for one in asked]
    short = {"max_tokens": 1, "stream": False}
    assert {"model": "m", "messages": [], "cache_salt": "s", **short} in sent
    assert warm.warmer.allowance.tokens == HELD / 2 - 8


@pytest.mark.integration
async def test_an_engine_that_does_not_say_what_it_computed_is_taken_to_have_computed_all() -> None:
    async with engine(b"200 OK", b"{}", []) as url:
        warm = Warm(url)
        warm.keep(2)
        warm.come()
        warm.computed()
        warm.join()

        await warm.warmer.warm(W3)
        await warm.pool.close()

    assert warm.warmer.figures().warmed.tokens == BLOCKS * 16


async def test_an_engine_that_fails_is_sent_no_more() -> None:
    warm = Warm()
    for which in range(2, 10):
        warm.keep(which)
    warm.come()
    warm.computed()
    warm.join()

    await warm.warmer.warm(W3)
    await warm.pool.close()

    assert warm.warmer.figures().warmed.failed == MOST_FAILED
    assert W3 in warm.context.workers.everyone(warm.routing.now)


async def test_one_that_left_is_sent_nothing() -> None:
    warm = Warm()
    warm.keep(2)
    warm.come()
    warm.computed()
    warm.join()
    del warm.context.router.heartbeats[W3]

    await warm.warmer.warm(W3)
    await warm.pool.close()

    assert warm.warmer.figures().warmed.failed == 0


@pytest.mark.integration
async def test_a_prompt_that_another_worker_holds_is_fetched_from_there() -> None:
    asked: list[bytes] = []
    async with engine(b"200 OK", ANSWER, asked) as url:
        warm = Warm(url)
        label = frozenset({"kvmesh/fetch/offloading/5711"})
        for worker in (W1, W3):
            warm.context.workers.describe(worker, WorkerInfo(total_blocks=10_000, labels=label))
        beats = warm.context.router.heartbeats
        for worker in (W1, W3):
            beats[worker] = msgspec.structs.replace(beats[worker], labels=tuple(label))
        warm.keep(2)
        warm.come()
        warm.computed()
        warm.join()
        index = warm.routing.scheduler.overlaps.index = KvIndex()
        index.apply(W1, Stored(ROOT, pack_hashes([2000 + n for n in range(BLOCKS)])))

        await warm.warmer.warm(W3)
        await warm.pool.close()

    body = msgspec.json.decode(asked[0].partition(b"\r\n\r\n")[2])
    assert body["kv_transfer_params"]["remote_kv_source"]["remote_port"] == 5711


@pytest.mark.integration
async def test_it_looks_for_ever_and_keeps_to_the_screen_there_was() -> None:
    asked: list[bytes] = []
    async with engine(b"200 OK", ANSWER, asked) as url, asyncio.timeout(30):
        warm = Warm(url)
        membership = warm.routing.scheduler.workers.membership
        membership.screens.append(lambda worker: "closed" if worker == W2 else "")
        membership.screen_anew()
        task = asyncio.ensure_future(warm.warmer.run())
        warm.keep(2)
        warm.come()
        for one, asked_for in warm.asks * 20:
            warm.warmer.keep(one, asked_for)
        await asyncio.sleep(0.3)
        assert membership.usable(warm.routing.now) == (W1,)
        warm.computed()
        warm.join()
        while not warm.warmer.figures().warmed.sent:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.01)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await warm.pool.close()

    assert len(asked) == 1


async def test_it_is_off_with_a_share_of_nothing() -> None:
    routing = Routing()

    assert warmer_of(0.0, routing.context, list[RouterHeartbeat], UpstreamPool()) is None
    assert WarmOptions().share == 0.03


async def test_of_more_prompts_than_can_be_looked_at_the_first_count() -> None:
    warm, half = Warm(), MOST_FRESH // 2
    for which in range(2, 4 + half):
        warm.keep(which, body=b"x" * which)
    for one, asked in warm.asks:
        warm.warmer.keep(one, asked)

    assert warm.warmer.keeper.take_in(1) == half - 1
    assert warm.warmer.keeper.take_in() == 0
    assert len(warm.warmer.keeper.kept) == half
    assert warm.warmer.keeper._fresh_bytes == 0
    await warm.pool.close()


async def test_a_tenant_that_floods_leaves_room_for_others() -> None:
    warm = Warm()
    for which in range(2, 2 + 2 * MOST_FRESH):
        warm.keep(which, tenant="junk")
    warm.keep(999, tenant="small")
    for one, asked in warm.asks:
        warm.warmer.keep(one, asked)

    warm.warmer.keeper.take_in()

    tenants = [one.sent.tenant for one in warm.warmer.keeper.kept.prompts()]
    assert (tenants.count("junk"), tenants.count("small")) == (MOST_FRESH // 2, 1)
    await warm.pool.close()


async def test_a_tenant_of_large_prompts_leaves_room_for_others() -> None:
    warm = Warm()
    large = b" " * warm.warmer.keeper.kept.options.most_bytes_each
    for which in range(2, 8):
        warm.keep(which, tenant="junk", body=large[HELD:])
    warm.keep(8, tenant="junk", body=large + b" ")
    warm.keep(9, tenant="small")
    for one, asked in warm.asks:
        warm.warmer.keep(one, asked)

    warm.warmer.keeper.take_in()

    tenants = [one.sent.tenant for one in warm.warmer.keeper.kept.prompts()]
    assert (tenants.count("junk"), tenants.count("small")) == (2, 1)
    await warm.pool.close()


async def test_a_flood_does_not_keep_it_from_looking() -> None:
    warm = Warm()
    taken, calls = warm.warmer.keeper.take_in, 0

    def flood(most: int = MOST_FRESH) -> int:
        nonlocal calls
        calls += 1
        for _ in range(2 * most):
            warm.keep(2, tenant=f"made up {len(warm.asks)}")
            warm.warmer.keep(*warm.asks[-1])
        return taken(most)

    vars(warm.warmer.keeper)["take_in"] = flood
    task = asyncio.ensure_future(warm.warmer.run())
    async with asyncio.timeout(30):
        while not warm.context.router.kept_prompts:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.01)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert calls == MOST_FRESH // AT_ONCE
    await warm.pool.close()


@pytest.mark.parametrize("lacks", ["wishes", "placed"])
async def test_a_prompt_without_hashes_is_not_kept(lacks: str) -> None:
    warm = Warm()
    request = RouteRequest("q", BlockHashes.of([*range(5000, 5064)], 16), 1024)
    placed = warm.routing.scheduler.schedule(request, 100.0)
    one = at_once(placed, Wishes(), None)
    setattr(one, lacks, None)

    warm.warmer.keep(one, Request("POST", CHAT.encode(), (), b"{}", CHAT))

    assert not warm.warmer.keeper._fresh
    await warm.pool.close()
