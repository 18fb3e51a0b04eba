"""Which prompts are kept to be sent again, what is sent, and what comes of it."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import msgspec
import pytest

from kvmesh.app.serve.one_token import PATHS
from kvmesh.app.serve.toucher import Toucher, toucher_of
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.dispatch.dispatched import as_read
from kvmesh.core.index.approx import new_approx
from kvmesh.core.members.loads import Demand, new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.programs.governor import Governor
from kvmesh.core.programs.held import GovernorOptions
from kvmesh.core.programs.table import ProgramTable
from kvmesh.core.programs.touch import Touch, Touches, TouchOptions
from kvmesh.core.programs.turn import Turn, TurnEnd
from kvmesh.core.routing.decision import RouteRequest, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.settings.requests import ProgramSettings
from kvmesh.transport.http.forward.plan import Target
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.upstream.client import UpstreamPool
from tests.unit.core.programs.program_cases import W1, SmallFleet, make_turn

C = 100_000
CHAT = "/v1/chat/completions"
BODY = b'{"model":"m","messages":[],"max_tokens":90,"stream":true,"stream_options":{},"n":1}'
ANSWER = b'{"usage":{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":96}}}'


class Kept:
    """A toucher over one worker, and what its engine was asked."""

    def __init__(self, url: str = "http://127.0.0.1:1", most_bytes: int = 10_000) -> None:
        self.table = ProgramTable(100, 100)
        self.touches = Touches(TouchOptions(), self.table, SmallFleet(w1=C))
        membership = Membership()
        membership.add(W1, 0.0)
        self.scheduler = Scheduler(
            RouterOptions(),
            random.Random(1),
            membership=membership,
            sequences=new_sequences(16),
            routed=new_approx(thinned=True),
        )
        self.targets = {W1: Target(url)}
        self.pool = UpstreamPool()
        self.now = 100.0
        self.toucher = Toucher(
            self.touches,
            self.scheduler,
            self.targets.get,
            self.pool,
            lambda: self.now,
            most_bytes,
        )

    def turn(self, name: str, body: bytes = BODY, path: str = CHAT, **more: object) -> Turn:
        """Take a turn of 30,000 tokens."""
        turn = make_turn(name, 30_000, **more)  # type: ignore[arg-type]  # any field
        hashes = BlockHashes.of([*range(hash(name) % 1000 + 1, hash(name) % 1000 + 21)], 16)
        headers = ((b"authorization", b"Bearer k"), (b"cookie", b"c"))
        request = RouteRequest("r", hashes, 30_000, turn=turn)
        asked = Request("POST", path.encode(), headers, body, path)
        self.toucher.keep(as_read(request, b"r"), asked)
        agent, _ = self.table.note(turn, self.now)
        assert agent is not None
        agent.worker, agent.stop, agent.turns = W1, "tool", agent.turns + 1
        self.scheduler.overlaps.record(W1, hashes, self.now)
        end = TurnEnd(served=True, worker=W1, computed_tokens=30_000, stop="tool")
        self.touches.ended(turn, end, self.now)
        agent.enter("paused", self.now)
        return turn


async def test_the_last_prompt_of_who_would_be_evicted_is_planned() -> None:
    kept = Kept()
    turn = kept.turn("a")
    kept.touches.wrote(W1, 40_000, 100.0)

    assert kept.toucher.plan() == [Touch(turn.agent, W1, 30_000)]
    figures = kept.toucher.figures()
    assert (figures.done, figures.prompts, figures.prompt_bytes) == (0, 1, len(BODY) + 160 + 512)


@pytest.mark.parametrize("case", ["path", "final", "large", "later", "worker", "busy", "unknown"])
async def test_whose_prompt_is_not_sent_again(case: str) -> None:
    kept = Kept()
    turn = kept.turn(
        "a",
        BODY + b" " * (10_000 if case == "large" else 0),
        "/v1/responses" if case == "path" else CHAT,
        final=case == "final",
    )
    kept.touches.wrote(W1, 40_000, 100.0)
    agent = kept.table.find(turn.agent)
    assert agent is not None
    if case == "later":
        (touch,) = kept.toucher.plan()
        kept.touches.done(touch, None, 0.0)
        kept.touches.wrote(W1, 1, 100.0)
        agent.turns += 1
    if case == "worker":
        kept.targets.clear()
    if case == "busy":
        kept.scheduler.sequences.add("r", W1, Demand(90_000, 90_000), 100.0)
    if case == "unknown":
        kept.toucher = Kept().toucher

    assert kept.toucher.plan() == []


async def test_the_longest_unused_prompts_go_where_there_are_too_many() -> None:
    kept = Kept(most_bytes=2000)

    for name in "abcde":
        kept.turn(name)

    assert kept.toucher.figures().prompts == 2
    assert kept.toucher.figures().prompt_bytes <= 2000


@contextlib.asynccontextmanager
async def engine(status: bytes, answer: bytes, asked: list[bytes]) -> AsyncIterator[str]:
    """Serve one answer to whatever is asked."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        asked.append(head + await reader.readexactly(length))
        size = b"%d" % len(answer)
        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: " + size + b"\r\n\r\n" + answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("status", "answer", "body", "failed", "computed"),
    [
        (b"200 OK", ANSWER, BODY, 0, 4),
        (b"200 OK", b"{}", BODY, 0, 0),
        (b"400 Bad", b"{}", BODY, 1, 0),
        (b"200 OK", b"", b"no JSON", 1, 0),
    ],
)
async def test_an_engine_is_asked_for_one_token_of_the_same_prompt(
    status: bytes, answer: bytes, body: bytes, failed: int, computed: int
) -> None:
    asked: list[bytes] = []
    async with engine(status, answer, asked) as url:
        kept = Kept(url)
        kept.turn("a", body)
        kept.touches.wrote(W1, 40_000, 100.0)
        (touch,) = kept.toucher.plan()
        await kept.toucher.send(touch)
        await kept.pool.close()

    figures = kept.toucher.figures()
    assert (figures.failed, figures.computed_tokens) == (failed, computed)
    if body is BODY:
        head, _, sent = asked[0].partition(b"\r\n\r\n")
        assert head.startswith(f"POST {CHAT} ".encode())
        assert b"Bearer k" in head
        assert b"cookie" not in head
        reported = {"model": "m", "messages": [], "max_tokens": 1, "stream": False, "n": 1}
        assert msgspec.json.decode(sent) == reported
    else:
        assert not asked


@pytest.mark.integration
async def test_who_cannot_be_reached_or_has_gone_is_a_touch_that_failed() -> None:
    kept = Kept()
    kept.turn("a")
    kept.touches.wrote(W1, 40_000, 100.0)
    (touch,) = kept.toucher.plan()

    await kept.toucher.send(touch)
    kept.targets.clear()
    await kept.toucher.send(touch)
    await kept.pool.close()

    assert kept.toucher.figures().failed == 2


@pytest.mark.integration
async def test_it_looks_for_ever() -> None:
    asked: list[bytes] = []
    async with engine(b"200 OK", ANSWER, asked) as url, asyncio.timeout(30):
        kept = Kept(url)
        kept.turn("a")
        kept.touches.wrote(W1, 40_000, 100.0)
        task = asyncio.ensure_future(kept.toucher.run())
        while not kept.toucher.figures().computed_tokens:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.01)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await kept.pool.close()

    assert len(asked) == 1


async def test_it_is_there_where_it_is_asked_for() -> None:
    kept = Kept()
    governor = Governor(GovernorOptions(), SmallFleet(w1=C))
    for given, there in (
        ({}, False),
        ({"re_touch": "on"}, True),
        ({"re_touch": "on", "program_turns": "off"}, False),
    ):
        settings = ProgramSettings(**given)  # type: ignore[arg-type]  # any field
        toucher = toucher_of(settings, governor, kept.scheduler, kept.targets.get, kept.pool)
        assert (toucher is not None) == there
    request = RouteRequest("r", BlockHashes.of([1], 16), 16)
    kept.toucher.keep(as_read(request, b"r"), Request("POST", b"/", (), BODY, CHAT))
    assert kept.toucher.figures().prompts == 0  # it is nobody's turn
    assert CHAT in PATHS
