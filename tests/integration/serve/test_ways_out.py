"""Every way out of a request, at every front: nothing is kept of it, in counters or in memory.

A new way out is one row of `PLAIN` or `GATED`: what is sent, done meanwhile, and answered.
"""

import asyncio
import contextlib
import gc
import threading
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final
from unittest import mock

import msgspec
import pytest
from msgspec.structs import replace

from kvmesh.app.meta.command import MetaServer
from kvmesh.app.prompts import reading_parts
from kvmesh.app.prompts.reading import Reader
from kvmesh.app.serve.routed import RoutedRequest
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.dispatch.dispatch import Dispatch
from kvmesh.core.dispatch.placing import Placer
from kvmesh.core.prompts.byte_tokenizer import ByteTokenizer
from kvmesh.core.routing.late_binding import LateBinding
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.requests import AdmissionSettings, FailureSettings
from kvmesh.settings.roles import CostSettings, MetaRouterSettings
from kvmesh.transport.http.server.exchange import Exchange
from tests.integration.serve.test_scope import CHUNK, PROMPT, door_to, of_requests
from tests.integration.support.failing_engine import (
    FailingEngine,
    RawClient,
    answer_status,
    answer_well,
    close_unanswered,
    exchange,
    failing_engines,
    never_answer,
    request_bytes,
)
from tests.integration.support.live_router import free_port, serving
from tests.integration.support.planted import Inside, Planted, looked_inside

pytestmark = pytest.mark.integration

BODY_BYTES: Final = 1 << 20
KEPT_BYTES: Final = BODY_BYTES // 2
"""Of two bodies of 1 MiB nothing may be kept; what else is made takes less than this."""

MOST_TASKS: Final = 4
"""Probes of members come and go."""

MOST_CONNECTIONS: Final = 8
TIMES: Final = 2
MAX_BODY_BYTES: Final = 3 << 20
CHAT: Final = "/v1/chat/completions"
GONE: Final = 0
IMPATIENT: Final = "x-kvmesh-timeout-s: 0.1"


class Stage:
    """A front with engines behind it."""

    def __init__(self, url: str, inside: Inside, engines: list[FailingEngine]) -> None:
        self.url = url
        self.inside = inside
        self.engines = engines
        self.kept: list[Exchange] = []
        self.numbers = count()
        self._tasks = len(asyncio.all_tasks())

    def body(self, **more: Any) -> dict[str, Any]:
        """Return a chat of a mebibyte, unlike all others; its prompt is short, as the index is not
        looked at here.
        """
        messages = [{"role": "user", "content": f"{next(self.numbers)} {PROMPT}"}]
        chat = {"model": "m", "messages": messages, "max_tokens": 1, "user": "x" * BODY_BYTES}
        return chat | more

    def long_body(self) -> dict[str, Any]:
        """Return one that takes a worker a second."""
        content = f"{next(self.numbers)} {PROMPT * 20}"
        return self.body(messages=[{"role": "user", "content": content}])

    def answer(self, answer: Callable[[Exchange], None]) -> None:
        """Have all engines answer so."""
        for engine in self.engines:
            engine.answer = answer

    def prompts(self) -> int:
        """Return how many prompts came to the engines."""
        return sum(len(engine.prompts) for engine in self.engines)

    def forget(self) -> None:
        """Keep nothing of earlier requests in the engines."""
        for engine in self.engines:
            engine.prompts.clear()
        self.kept.clear()

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until something is seen."""
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110  what is looked at cannot tell
                await asyncio.sleep(0.002)
        assert condition(), what

    async def send(self, body: object, *headers: str) -> RawClient:
        """Send a whole request; return its connection."""
        client = await RawClient.connect(self.url)
        await client.send(request_bytes(msgspec.json.encode(body), CHAT, *headers))
        return client


Way = Callable[[Stage], Awaitable[int]]


async def still_held(stage: Stage) -> list[str]:
    """Return what is held of requests that are over, by the counters of all that serves here."""
    wrong: list[str] = []
    if held := await stage.inside.all_released():
        wrong.append(f"held {held}")
    if (tasks := len(asyncio.all_tasks())) > stage._tasks + MOST_TASKS:
        wrong.append(f"{tasks} tasks, {stage._tasks} before")
    for context in stage.inside._contexts:
        ends = sum(number for _, number in context.counters.ends.items())
        if ends != context.counters.requests:
            wrong.append(f"{ends} ends of {context.counters.requests} requests")
    for pool in stage.inside._pools:
        connections = pool.statistics().open_connections
        if connections > MOST_CONNECTIONS:
            wrong.append(f"{connections} connections to engines")
    return wrong


async def assert_clean(stage: Stage, way: Way, sees: set[int]) -> list[str]:
    """Go a way out three times, count from the first on; return what is wrong behind it.

    The collector is off meanwhile: an exception that holds the frame that holds it keeps a body
    until the collector comes, which is rare in a process with much in memory.
    """
    wrong: list[str] = []
    before = 0
    for turn in range(TIMES + 1):
        saw = await way(stage)
        if saw not in sees:
            wrong.append(f"saw {saw}")
        stage.forget()
        if turn == 0:
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
    kept = tracemalloc.get_traced_memory()[0] - before
    for _ in range(100):
        if kept < KEPT_BYTES:
            break
        await asyncio.sleep(0.01)
        kept = tracemalloc.get_traced_memory()[0] - before
    else:
        wrong.append(f"{kept} bytes kept of {TIMES} requests")
    wrong += await still_held(stage)
    return [f"{way.__name__}: {one}" for one in wrong]


@contextlib.contextmanager
def weighed() -> Iterator[None]:
    """Count memory, with the collector off."""
    gc.collect()
    gc.disable()
    tracemalloc.start(1)
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


# Ways out that need no queue.


async def answered(stage: Stage) -> int:
    return await exchange(stage.url, stage.body())


async def streamed(stage: Stage) -> int:
    return await exchange(stage.url, stage.body(stream=True))


async def unknown_model(stage: Stage) -> int:
    return await exchange(stage.url, stage.body(model="nobody"))


async def no_such_worker(stage: Stage) -> int:
    return await exchange(stage.url, stage.body(), "x-kvmesh-worker-id: gone", IMPATIENT)


async def no_prompt(stage: Stage) -> int:
    return await exchange(stage.url, {"model": "m", "nothing": "x" * BODY_BYTES})


async def no_json(stage: Stage) -> int:
    return await exchange(stage.url, b'{"model": "m", ' + b"x" * BODY_BYTES)


async def wrong_header(stage: Stage) -> int:
    return await exchange(stage.url, stage.body(), "x-kvmesh-temperature: warm")


async def too_large(stage: Stage) -> int:
    client = await RawClient.connect(stage.url)
    begun = request_bytes(b"x" * BODY_BYTES, CHAT, length=2 * MAX_BODY_BYTES)
    await client.send(begun)
    status = await client.status()
    client.reset()
    return status


async def client_leaves_in_its_body(stage: Stage) -> int:
    client = await RawClient.connect(stage.url)
    await client.send(request_bytes(b"x" * BODY_BYTES, CHAT, length=2 * BODY_BYTES))
    await stage.until(lambda: stage.inside.body_bytes() >= BODY_BYTES // 2, "the body comes")
    client.reset()
    return GONE


async def client_leaves_before_the_answer(stage: Stage) -> int:
    stage.answer(never_answer)
    client = await stage.send(stage.body())
    await stage.until(stage.prompts, "an engine has it")
    client.reset()
    return GONE


def stream_and_stall(one: Exchange) -> None:
    """Begin a stream; what only prefills is asked for none."""
    if not msgspec.json.decode(one.request.body).get("stream"):
        answer_well(one)
        return
    one.start(200, ((b"content-type", b"text/event-stream"),))
    one.write(CHUNK)


async def client_leaves_in_the_stream(stage: Stage) -> int:
    stage.answer(stream_and_stall)
    client = await stage.send(stage.body(stream=True))
    await client.until(b"data: ")
    assert stage.inside.body_bytes() < 2 * BODY_BYTES, "but the engine somebody holds the body"
    client.reset()
    return GONE


async def client_leaves_while_a_thread_reads(stage: Stage) -> int:
    begun, go_on = threading.Event(), threading.Event()
    make = Reader.make

    def wait(*arguments: Any, **named: Any) -> Any:
        begun.set()
        go_on.wait(30)
        return make(*arguments, **named)

    short = mock.patch.object(ByteTokenizer, "inline_characters", BODY_BYTES // 4)
    with short, mock.patch.object(Reader, "make", wait):
        client = await stage.send(stage.body())
        await stage.until(begun.is_set, "the thread reads")
        client.reset()
        gone = stage.inside.requests
        await stage.until(lambda: gone() == 0, "the client is gone")
        assert stage.inside.body_bytes() >= BODY_BYTES, "the thread holds the body, off the budget"
        go_on.set()
        await stage.until(lambda: stage.inside.body_bytes() == 0, "the thread let go")
    return GONE


async def worker_answers_500(stage: Stage) -> int:
    stage.answer(answer_status(500))
    return await exchange(stage.url, stage.body())


async def worker_answers_400(stage: Stage) -> int:
    stage.answer(answer_status(400))
    return await exchange(stage.url, stage.body())


async def first_worker_fails(stage: Stage) -> int:
    failures = [close_unanswered]

    def answer(one: Exchange) -> None:
        (failures.pop() if failures else answer_well)(one)

    stage.answer(answer)
    return await exchange(stage.url, stage.body())


async def every_worker_fails(stage: Stage) -> int:
    stage.answer(close_unanswered)
    return await exchange(stage.url, stage.body(), IMPATIENT)


def stream_and_reset(one: Exchange) -> None:
    stream_and_stall(one)
    asyncio.get_running_loop().call_later(0.01, one.reset)


async def worker_cuts_the_stream(stage: Stage) -> int:
    stage.answer(stream_and_reset)
    return await exchange(stage.url, stage.body(stream=True))


async def too_late(stage: Stage) -> int:
    stage.answer(never_answer)
    return await exchange(stage.url, stage.body(), IMPATIENT)


def planted_in(owner: type, name: str) -> Way:
    """Return the way out that an error of ours makes."""

    async def way(stage: Stage) -> int:
        with Planted(owner, name, late=False).in_place(of_requests):
            return await exchange(stage.url, stage.body())

    way.__name__ = f"error in {owner.__name__}.{name}"
    return way


PLAIN: Final[list[tuple[Way, set[int]]]] = [
    (answered, {200}),
    (streamed, {200}),
    (unknown_model, {404}),
    (no_such_worker, {404, 503, 504}),
    (no_prompt, {400}),
    (no_json, {400}),
    (wrong_header, {400}),
    (too_large, {413}),
    (client_leaves_in_its_body, {GONE}),
    (client_leaves_before_the_answer, {GONE}),
    (client_leaves_in_the_stream, {GONE}),
    (client_leaves_while_a_thread_reads, {GONE}),
    (worker_answers_400, {400}),
    (worker_answers_500, {500}),
    (first_worker_fails, {200}),
    (worker_cuts_the_stream, {200}),
    (too_late, {504}),
    (planted_in(Reader, "make"), {500}),
    (planted_in(Dispatch, "decide"), {500}),
    (planted_in(Scheduler, "schedule"), {500}),
    (every_worker_fails, {502, 503, 504}),
]

COMPILED: Final[list[tuple[Way, set[int]]]] = [
    (answered, {200}),
    (streamed, {200}),
    (client_leaves_before_the_answer, {GONE}),
    (client_leaves_in_the_stream, {GONE}),
    (worker_answers_400, {400}),
    (worker_answers_500, {500}),
    (first_worker_fails, {200}),
    (worker_cuts_the_stream, {200}),
    (planted_in(Reader, "scan"), {500}),
    (planted_in(Placer, "decide"), {500}),
    (planted_in(RoutedRequest, "next_target"), {500}),
    (planted_in(Dispatch, "finished"), {200}),
]
"""Those of requests that the compiled core decides."""

FAILURE: Final = FailureSettings(wait_for_worker_s=0.0, retry_budget=1.0, hang_s=0.0)
HTTP: Final[dict[str, Any]] = {"max_body_bytes": MAX_BODY_BYTES, "drain_s": 1.0}
Front = Callable[..., contextlib.AbstractAsyncContextManager[Stage]]


@contextlib.asynccontextmanager
async def alone(engines: list[FailingEngine], folder: Path, **more: Any) -> AsyncIterator[Stage]:
    """Serve a router; it keeps no prompts for workers that join."""
    del folder
    async with door_to(engines, failure=FAILURE, http=HTTP, warm_share=0.0, **more) as door:
        yield Stage(door.url, door.inside, engines)


@contextlib.asynccontextmanager
async def meta(engines: list[FailingEngine], folder: Path, **more: Any) -> AsyncIterator[Stage]:
    """Serve a meta-router in front of a router."""
    async with alone(engines, folder, **more) as behind:
        http = HttpSettings(http_port=free_port(), **HTTP)
        server = MetaServer(MetaRouterSettings(replica=(f"a={behind.url}",), http=http))
        url = f"http://127.0.0.1:{http.http_port}"
        async with serving(server.serve, url):
            with looked_inside(behind.inside) as inside:
                yield Stage(url, inside, engines)


@contextlib.asynccontextmanager
async def split(engines: list[FailingEngine], folder: Path) -> AsyncIterator[Stage]:
    """Serve a router whose first engine only prefills for the second."""
    roles = zip(engines, ("prefill", "decode"), strict=True)
    workers = tuple(f"{role}={one.url},role={role}" for one, role in roles)
    cost = CostSettings(prefill_threshold=100)
    async with alone(engines, folder, worker=workers, cost=cost) as stage:
        yield stage


@pytest.mark.parametrize("front", [alone, meta, split])
async def test_every_way_out_leaves_nothing_behind(front: Front, tmp_path: Path) -> None:
    wrong: list[str] = []
    async with failing_engines(2) as engines, front(engines, tmp_path) as stage:
        with weighed():
            for way, sees in PLAIN:
                stage.answer(answer_well)
                wrong += await assert_clean(stage, way, sees)

    assert wrong == []


@pytest.mark.parametrize("front", [alone, meta])
async def test_every_way_out_of_the_compiled_core_leaves_nothing_behind(
    front: Front, tmp_path: Path
) -> None:
    wrong: list[str] = []
    scanned = mock.patch.object(reading_parts, "SCANNED_BYTES", MAX_BODY_BYTES)
    inline = mock.patch.object(ByteTokenizer, "inline_characters", MAX_BODY_BYTES)
    with scanned, inline:
        async with failing_engines(2) as engines, front(engines, tmp_path) as stage:
            (context,) = stage.inside._contexts
            decider = context.scheduler.decider
            with weighed():
                for way, sees in COMPILED:
                    stage.answer(answer_well)
                    before = decider.decisions
                    wrong += await assert_clean(stage, way, sees)
                    if decider.decisions == before and "error in" not in way.__name__:
                        wrong.append(f"{way.__name__} went another way")

    assert wrong == []


# Ways out of the queue.

ADMISSION: Final = AdmissionSettings(
    max_backlog_ms=100.0,
    busy_prefill_tokens=100,
    max_queued=2,
    max_queued_per_tenant=1,
    max_wait_s=30.0,
)


@contextlib.asynccontextmanager
async def busy(stage: Stage) -> AsyncIterator[Callable[[], None]]:
    """Have the one engine at work on a request until the block ends, or what is yielded is called.

    What comes meanwhile waits at the router.
    """
    kept: list[Exchange] = []
    stage.answer(kept.append)
    before = asyncio.create_task(exchange(stage.url, stage.long_body()))
    await stage.until(lambda: kept, "the engine is at work")
    stage.answer(answer_well)

    def free() -> None:
        while kept:
            answer_well(kept.pop())

    try:
        yield free
    finally:
        free()
        assert await before == 200


async def wait_in_queue(stage: Stage, *headers: str, waiting: int = 1) -> RawClient:
    """Return the connection of a request that waits, as one of so many."""
    client = await stage.send(stage.body(), *headers)
    await stage.until(lambda: stage.inside.at_the_gate() >= 2 * waiting, "it waits")
    return client


async def left_the_queue(stage: Stage) -> None:
    await stage.until(lambda: not stage.inside.at_the_gate(), "nobody waits any more")


async def read_to_the_end(client: RawClient) -> int:
    status = await client.status()
    client.reset()
    return status


async def queued_then_answered(stage: Stage) -> int:
    async with busy(stage) as free:
        client = await wait_in_queue(stage)
        free()
        return await read_to_the_end(client)


async def expires_in_the_queue(stage: Stage) -> int:
    (gate,) = (context.gate for context in stage.inside._contexts)
    async with busy(stage):
        gate.change(replace(gate.limits, max_wait_s=0.1))
        status = await exchange(stage.url, stage.body())
        gate.change(replace(gate.limits, max_wait_s=ADMISSION.max_wait_s))
    return status


async def client_leaves_the_queue(stage: Stage) -> int:
    async with busy(stage):
        (await wait_in_queue(stage)).reset()
        await left_the_queue(stage)
    return GONE


async def tenant_has_too_many(stage: Stage) -> int:
    async with busy(stage):
        client = await wait_in_queue(stage, "x-kvmesh-tenant: a")
        status = await exchange(stage.url, stage.body(), "x-kvmesh-tenant: a")
        client.reset()
        await left_the_queue(stage)
    return status


async def queue_is_full(stage: Stage) -> int:
    async with busy(stage):
        first = await wait_in_queue(stage, "x-kvmesh-tenant: a")
        second = await wait_in_queue(stage, "x-kvmesh-tenant: b", waiting=2)
        status = await exchange(stage.url, stage.body(), "x-kvmesh-tenant: c")
        for client in (first, second):
            client.reset()
        await left_the_queue(stage)
    return status


async def its_turn_is_an_error(stage: Stage) -> int:
    async with busy(stage) as free:
        client = await wait_in_queue(stage)
        with Planted(LateBinding, "_try", late=False).in_place(of_requests):
            free()
            return await read_to_the_end(client)


async def unknown_model_at_the_gate(stage: Stage) -> int:
    return await exchange(stage.url, stage.body(model="nobody"))


GATED: Final[list[tuple[Way, set[int]]]] = [
    (queued_then_answered, {200}),
    (client_leaves_the_queue, {GONE}),
    (tenant_has_too_many, {429}),
    (queue_is_full, {503}),
    (its_turn_is_an_error, {500}),
    (unknown_model_at_the_gate, {404}),
    (expires_in_the_queue, {503}),
]


@pytest.mark.parametrize("front", [alone, meta])
async def test_every_way_out_of_the_queue_leaves_nothing_behind(
    front: Front, tmp_path: Path
) -> None:
    wrong: list[str] = []
    async with (
        failing_engines(1) as engines,
        front(engines, tmp_path, admission=ADMISSION) as stage,
    ):
        with weighed():
            for way, sees in GATED:
                stage.answer(answer_well)
                wrong += await assert_clean(stage, way, sees)

    assert wrong == []


async def test_a_failed_attempt_keeps_no_booking_while_the_next_is_at_work(tmp_path: Path) -> None:
    kept: list[tuple[int, Exchange]] = []

    def answer(number: int, one: Exchange) -> None:
        kept.append((number, one))
        if len(kept) == 1:
            close_unanswered(one)

    async with failing_engines(2) as engines, alone(engines, tmp_path) as stage:
        for number, engine in enumerate(engines):
            engine.answer = partial(answer, number)
        (context,) = stage.inside._contexts
        asked = asyncio.create_task(exchange(stage.url, stage.body()))
        await stage.until(lambda: len(kept) == 2, "the second has it")
        (first, _), (second, waiting) = kept

        (booking,) = context.scheduler.sequences.owned()
        assert (first != second, booking.worker) == (True, f"w{second}")
        assert context.scheduler.sequences.loads(WorkerId(f"w{first}")).active_requests == 0
        answer_well(waiting)
        assert await asked == 200
        await stage.until(lambda: not context.scheduler.sequences.owned(), "nothing is booked")


async def test_a_router_that_ends_leaves_nothing_behind(tmp_path: Path) -> None:
    async with failing_engines(1) as engines:
        async with alone(engines, tmp_path, admission=ADMISSION) as stage:
            inside = stage.inside
            stage.answer(stream_and_stall)
            streaming = await stage.send(stage.body(stream=True))
            await streaming.until(b"data: ")
            stage.answer(never_answer)
            sent = await stage.send(stage.long_body())
            await stage.until(lambda: stage.prompts() == 2, "the engine has it")
            queued = await wait_in_queue(stage)
            reported = asyncio.create_task(queued.status())
            half = await RawClient.connect(stage.url)
            await half.send(request_bytes(b"x" * BODY_BYTES, CHAT, length=2 * BODY_BYTES))
        assert await reported == 503
        assert await inside.all_released() == {}
        for client in (streaming, sent, queued, half):
            client.reset()
