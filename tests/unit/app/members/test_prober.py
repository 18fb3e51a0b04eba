import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from kvmesh.app.members import prober
from kvmesh.app.members.prober import Probe, Prober
from kvmesh.core.members.health import Answer
from kvmesh.tasks import TASK, end_tasks
from kvmesh.transport.http.upstream.client import UpstreamPool
from tests.conftest import Contexts, Eventually

pytestmark = pytest.mark.integration

NOBODY = "http://127.0.0.1:1"


class Engine:
    """Answers every request with the same status, or with nothing for as long as `hold` says."""

    def __init__(self, status: int = 200, *, silent: bool = False) -> None:
        self.status = status
        self.silent = silent
        self.paths: list[str] = []
        self.url = ""
        self.connections: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(asyncio.create_task(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.paths.append(head.split()[1].decode())
                if not self.silent:
                    writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % self.status)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def listening(engine: Engine) -> AsyncIterator[Engine]:
    server = await asyncio.start_server(engine.accept, "127.0.0.1", 0)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        server.close()
        await asyncio.gather(*engine.connections)


class Asking:
    """A prober and what it was told."""

    def __init__(self) -> None:
        self.due: list[Probe] = []
        self.looked = 0
        self.told: list[tuple[str, Answer]] = []
        self.pool = UpstreamPool()
        self.prober = Prober(self.pool, self._take, self._report, asyncio.get_running_loop().time)

    def _take(self, now: float) -> list[Probe]:
        del now
        self.looked += 1
        return self.due

    def _report(self, member: str, answer: Answer, now: float) -> None:
        assert now > 0.0
        self.told.append((member, answer))
        self.due = [one for one in self.due if one.member != member]


@contextlib.asynccontextmanager
async def asking() -> AsyncIterator[Asking]:
    made = Asking()
    task = asyncio.create_task(made.prober.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.pool.close()


@pytest.mark.parametrize(
    ("status", "exact", "answer"),
    [(200, False, "ok"), (404, False, "ok"), (500, False, "unready"), (503, False, "unready"),
     (200, True, "ok"), (404, True, "unready")],
)  # fmt: skip
async def test_any_answer_but_a_server_error_is_one_unless_it_must_be_exact(
    status: int, exact: bool, answer: Answer, eventually: Eventually
) -> None:
    async with listening(Engine(status)) as engine, asking() as made:
        made.due = [Probe("w1", engine.url, "/health", exact)]
        made.prober.wake()

        await eventually(lambda: made.told == [("w1", answer)])

        assert engine.paths == ["/health"]


async def test_where_nobody_listens_nobody_is(eventually: Eventually) -> None:
    async with asking() as made:
        made.due = [Probe("w1", NOBODY, "/health"), Probe("w2", "no url", "/health")]

        await eventually(lambda: sorted(made.told) == [("w1", "down"), ("w2", "down")])


async def test_an_answer_in_no_time_is_slow_and_asked_for_once_at_a_time(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prober, "ANSWER_S", 0.3)
    async with listening(Engine(silent=True)) as engine, asking() as made:
        made.due = [Probe("w1", engine.url, "/health")]

        await eventually(lambda: made.told == [("w1", "slow")])

        assert made.looked >= 2
        assert engine.paths == ["/health"]


async def test_who_is_due_is_asked_in_the_turn_in_which_it_is_said(eventually: Eventually) -> None:
    async with asking() as made:
        await eventually(lambda: made.looked == 1)
        made.prober.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        await eventually(lambda: made.looked == 2, timeout_s=0.09)


@pytest.mark.parametrize(
    ("path", "asked"),
    [("/ready", "/ready"), ("", "/health"), ("/a b", "/health"), ("/x\r\nHost: y", "/health"),
     ("/" + "a" * 300, "/health"), ("http://elsewhere/", "/health")],
)  # fmt: skip
def test_a_path_that_is_none_is_not_asked_for(path: str, asked: str) -> None:
    assert Probe.of("w1", "http://w1", path) == Probe("w1", "http://w1", asked)


async def test_a_fault_in_one_members_probe_leaves_the_others_asked(
    eventually: Eventually, reported: Contexts
) -> None:
    told: list[str] = []

    def report(member: str, answer: Answer, now: float) -> None:
        del answer, now
        told.append(member)
        if member == "odd":
            raise KeyError(member)

    pool = UpstreamPool()
    probes = [Probe("odd", NOBODY, "/health"), Probe("w", NOBODY, "/health")]
    asking = Prober(pool, lambda _: probes, report, asyncio.get_running_loop().time)
    running = asyncio.create_task(asking.run())
    await eventually(lambda: told.count("odd") > 1 < told.count("w"))
    await end_tasks(running)
    await pool.close()

    assert {one[TASK] for one in reported} == {"ask members"}
