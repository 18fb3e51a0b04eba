"""`kvmesh router --http-processes 2`: edges that share a port, one index process, some killed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.support.live_router import free_port

pytestmark = pytest.mark.integration

PREFIX = "What everybody asks about, again and again. " * 20
DEADLINE_S = 60.0
OWN_FORMULA = f"{Path(__file__).parents[3]}/examples/my_cost.py:my_cost"


class Processes:
    """A router of two edges over two slow engines."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.engines = [free_port() for _ in range(2)]
        self._log = (folder / "log").open("wb")
        (folder / "token").write_text("secret", encoding="ascii")
        self._started = [self._run("mocker", *self._engine(port)) for port in self.engines]
        workers = [f"--worker=w{n}=http://127.0.0.1:{port}" for n, port in enumerate(self.engines)]
        self._command = [
            *("router", "--no-kv-events", "--http-port", str(self.port), "--router-id", "r0"),
            *("--http-processes", "2", "--drain-s", "60", "--connect-timeout-s", "20"),
            *("--admin-token-file", str(folder / "token"), *workers),
            *("--shadow-policy", f"kv:{OWN_FORMULA}"),
        ]
        self.router = self._run(*self._command)

    def revive(self) -> None:
        """Start the router again if a test ended it."""
        if self.router.poll() is not None:
            self.router = self._run(*self._command)

    def limit(self, **limits: Any) -> None:
        """Change the admission limits, through whichever edge."""
        answer = httpx.put(
            f"http://127.0.0.1:{self.port}/admin/admission",
            json=limits,
            headers={"authorization": "Bearer secret"},
            timeout=60,
        )
        assert answer.status_code == 200, answer.text

    @staticmethod
    def _engine(port: int) -> list[str]:
        ports = ["--port", str(port), "--kv-events-port", "0", "--replay-port", "0"]
        return [*ports, "--speedup-ratio", "1"]

    def _run(self, *arguments: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "kvmesh", *arguments], stdout=self._log, stderr=self._log
        )

    def index_pid(self, edges: list[dict[str, Any]]) -> int:
        """Return the process id of the one child that is no edge."""
        pid = self.router.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        (found,) = {int(child) for child in children} - {edge["pid"] for edge in edges}
        return found

    def stop(self) -> None:
        for process in (self.router, *self._started):
            process.terminate()
        for process in (self.router, *self._started):
            process.wait(120)
        self._log.close()


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    running = Processes(tmp_path_factory.mktemp("processes"))
    yield running
    running.stop()


async def ask(url: str, path: str) -> Any:
    """GET on a connection of its own; None while nobody answers 200."""
    try:
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            answer = await client.get(path)
            return answer.json() if answer.status_code == 200 else None
    except httpx.HTTPError:
        return None


async def edges_of(url: str) -> list[dict[str, Any]]:
    """Return both edges, once both are connected and the workers known."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        edges = await ask(url, "/v1/edges")
        if edges is not None and len(edges) == 2 and await ask(url, "/ready"):
            return list(edges)
        await asyncio.sleep(0.05)
    pytest.fail("the router's parts did not find each other")


async def guided(url: str) -> None:
    """Wait until every edge asks the index: it may know them before they know it."""
    deadline = time.monotonic() + DEADLINE_S
    in_a_row = 0
    while in_a_row < 8:
        assert time.monotonic() < deadline, "an edge still goes without the index"
        answer = await chat(url, PREFIX)
        in_a_row = 0 if "x-kvmesh-index" in answer.headers else in_a_row + 1


async def idle(url: str) -> dict[str, Any]:
    """Return the status once nothing is booked any more."""
    deadline = time.monotonic() + DEADLINE_S
    status: Any = None
    while time.monotonic() < deadline:
        status = await ask(url, "/v1/status")
        if status and not any(worker["active_requests"] for worker in status["workers"]):
            return dict(status)
        await asyncio.sleep(0.05)
    pytest.fail(f"bookings remain: {status}")


@pytest.fixture
async def url(processes: Processes) -> AsyncIterator[str]:
    base = f"http://127.0.0.1:{processes.port}"
    processes.revive()
    await edges_of(base)
    yield base
    await edges_of(base)
    await idle(base)


def body(text: str, **more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": text}
    return {"model": "mock", "max_tokens": 4, "messages": [message]} | more


async def chat(url: str, text: str, **headers: str) -> httpx.Response:
    """Ask on a new connection: the kernel picks the edge."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        return await client.post("/v1/chat/completions", json=body(text), headers=headers)


class Stream:
    """An open stream of an answer."""

    def __init__(self, client: httpx.AsyncClient, text: str, tokens: int) -> None:
        self._client = client
        self._begun = asyncio.Event()
        sent = body(text, max_tokens=tokens, stream=True, ignore_eos=True)
        self.reading = asyncio.create_task(self._read(sent))

    async def _read(self, sent: dict[str, Any]) -> str:
        lines: list[str] = []
        async with self._client.stream("POST", "/v1/chat/completions", json=sent) as answer:
            async for line in answer.aiter_lines():
                lines.append(line)
                if "content" in line:
                    self._begun.set()
        return "\n".join(lines)

    async def begun(self) -> None:
        await asyncio.wait_for(self._begun.wait(), DEADLINE_S)


async def test_edges_share_the_port_and_one_index(url: str) -> None:
    first = await chat(url, PREFIX + "one")
    answers = [await chat(url, f"{PREFIX}{number}") for number in range(12)]
    edges = await edges_of(url)

    assert {answer.status_code for answer in [first, *answers]} == {200}
    assert {one.headers["x-kvmesh-worker"] for one in answers} == {first.headers["x-kvmesh-worker"]}
    assert min(int(one.headers["x-kvmesh-overlap-blocks"]) for one in answers) > 20
    assert {one.headers["x-kvmesh-router"] for one in answers} == {"r0"}
    assert len({one.headers["x-request-id"].split("-")[0] for one in answers}) == 2
    assert {edge["edge"] for edge in edges} == {0, 1}


async def test_cold_paths_are_the_index_processs_whichever_edge_is_asked(url: str) -> None:
    models = [await ask(url, "/v1/models") for _ in range(4)]
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        metrics = (await client.get("/metrics")).text
        decision = (await client.post("/v1/route", json=body(PREFIX))).json()
        missing = await client.get("/nothing")
        wrong = await client.get("/v1/chat/completions")
        health = await client.get("/health")
        bad = await client.post("/v1/chat/completions", content=b"{")

    assert [one["data"][0]["id"] for one in models] == ["mock"] * 4
    assert 'kvmesh_edge_requests_total{edge="1"}' in metrics
    assert 'kvmesh_requests_total{outcome="finished",status="2xx"}' in metrics
    assert decision["worker"] in {"w0", "w1"}
    assert (missing.status_code, wrong.status_code) == (404, 405)
    assert (health.status_code, bad.status_code) == (200, 400)


async def test_the_index_process_decides_by_a_formula_of_a_file_and_refuses_what_it_has_not(
    url: str,
) -> None:
    await guided(url)

    named = await chat(url, PREFIX, **{"x-kvmesh-cost": "my_cost.py:my_cost"})
    path = await chat(url, PREFIX, **{"x-kvmesh-cost": OWN_FORMULA})
    lacking = await chat(
        url,
        PREFIX,
        **{"x-kvmesh-cost": "my_cost.py:my_cost", "x-kvmesh-overlap-score-weight": "2"},
    )
    rows = (await ask(url, "/v1/decisions?limit=1"))["decisions"]

    assert named.status_code == 200
    assert rows[0]["policy"] == "my_cost.py:my_cost"
    assert path.status_code == lacking.status_code == 400
    assert "a file is read only where its operator names it" in path.text
    assert "'overlap_score_weight' here; it has hit (0 to 10" in lacking.text


async def test_an_edge_killed_in_a_stream_leaves_no_booking(url: str) -> None:
    edges = await edges_of(url)
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        stream = Stream(client, "killed", 2000)
        await stream.begun()
        serving = [edge for edge in await edges_of(url) if edge["open_requests"]]
        assert len(serving) == 1

        os.kill(serving[0]["pid"], signal.SIGKILL)
        with pytest.raises(httpx.RemoteProtocolError):
            await stream.reading

    status = await idle(url)
    assert status["requests"]["cut"] >= 1
    assert {edge["pid"] for edge in await edges_of(url)} != {edge["pid"] for edge in edges}


async def test_edges_go_on_while_the_index_process_is_dead(url: str, processes: Processes) -> None:
    index = processes.index_pid(await edges_of(url))
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        stream = Stream(client, "survives", 80)
        await stream.begun()

        # Else its parent may have put another in its place before the next request arrives.
        os.kill(processes.router.pid, signal.SIGSTOP)
        try:
            os.kill(index, signal.SIGKILL)
            unguided = await chat(url, PREFIX)
        finally:
            os.kill(processes.router.pid, signal.SIGCONT)
        whole = await stream.reading

    assert unguided.status_code == 200
    assert unguided.headers["x-kvmesh-index"] == "away"
    assert whole.rstrip().endswith("[DONE]")
    await edges_of(url)
    await guided(url)
    assert processes.index_pid(await edges_of(url)) != index


async def test_edges_do_without_an_index_process_that_hangs(url: str, processes: Processes) -> None:
    index = processes.index_pid(await edges_of(url))
    os.kill(index, signal.SIGSTOP)
    try:
        answers = await asyncio.gather(*(chat(url, f"{PREFIX}{number}") for number in range(6)))
    finally:
        os.kill(index, signal.SIGCONT)

    assert [answer.text for answer in answers if answer.status_code != 200] == []
    assert {answer.headers["x-kvmesh-index"] for answer in answers} == {"away"}
    await idle(url)


async def test_a_worker_that_refuses_is_left_for_another(url: str, processes: Processes) -> None:
    del processes
    answers = [await chat(url, PREFIX, **{"x-kvmesh-worker-id": "w1"}) for _ in range(2)]
    nowhere = await chat(url, PREFIX, **{"x-kvmesh-worker-id": "w9"})

    assert {one.headers["x-kvmesh-worker"] for one in answers} == {"w1"}
    assert nowhere.status_code == 503
    assert "w9: unknown" in nowhere.json()["error"]["message"]


async def test_a_request_may_be_held_until_a_worker_is_free(url: str, processes: Processes) -> None:
    await asyncio.to_thread(processes.limit, max_backlog_ms=1.0)
    try:
        texts = [f"{number} {PREFIX * 4}" for number in range(8)]
        answers = await asyncio.gather(*(chat(url, text) for text in texts))
        admission = await ask(url, "/admin/admission")
    finally:
        await asyncio.to_thread(processes.limit, max_backlog_ms=0.0)

    assert [answer.text for answer in answers if answer.status_code != 200] == []
    assert admission["statistics"]["held"] >= 1


async def test_a_policy_is_tried_on_the_requests_of_every_edge(url: str) -> None:
    admin = f"{url}/admin/policy"
    wish = {"formula": "lmetric", "stages": [0.5, 1]}
    token = {"authorization": "Bearer secret"}
    begun = await asyncio.to_thread(httpx.put, admin, json=wish, headers=token, timeout=60)
    try:
        answers = [await chat(url, f"{number} {PREFIX}") for number in range(24)]
        trial = (await ask(url, "/admin/policy"))["trial"]
    finally:
        over = await asyncio.to_thread(httpx.delete, admin, headers=token, timeout=60)
    after = await chat(url, PREFIX)

    assert (begun.status_code, over.status_code) == (200, 200)
    said = [answer.headers["x-kvmesh-policy"] for answer in answers]
    assert set(said) == {"baseline", "candidate"}
    assert [(arm["arm"], arm["requests"]) for arm in trial["arms"]] == [
        ("baseline", said.count("baseline")),
        ("candidate", said.count("candidate")),
    ]
    assert "x-kvmesh-policy" not in after.headers


async def test_a_taken_port_is_told_at_once() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kvmesh", "router", "--no-kv-events", "--http-processes", "2"),
        *("--http-port", "1" if os.getuid() else "65535", "--http-host", "192.0.2.1"),
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()

    assert process.returncode == 2
    assert b"cannot listen on 192.0.2.1" in errors


async def test_sigterm_lets_streams_finish_and_ends_every_part(processes: Processes) -> None:
    base = f"http://127.0.0.1:{processes.port}"
    processes.revive()
    pids = [edge["pid"] for edge in await edges_of(base)]
    pids.append(processes.index_pid(await edges_of(base)))
    async with httpx.AsyncClient(base_url=base, timeout=60) as client:
        stream = Stream(client, "finishes", 80)
        await stream.begun()

        processes.router.terminate()
        whole = await stream.reading

    assert whole.rstrip().endswith("[DONE]")
    assert await asyncio.to_thread(processes.router.wait, 120) == 0
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []  # noqa: ASYNC240


async def test_edges_hide_an_engine_that_fails_and_one_that_hangs(processes: Processes) -> None:
    processes.revive()
    url = f"http://127.0.0.1:{processes.port}"
    sick = f"http://127.0.0.1:{processes.engines[0]}/kvmesh/faults"
    await edges_of(url)
    await guided(url)

    async with httpx.AsyncClient(base_url=url, timeout=60) as client:

        async def ask_many(name: str) -> list[httpx.Response]:
            bodies = [
                {"model": "mock", "prompt": f"{name} {number}", "max_tokens": 1}
                for number in range(12)
            ]
            asked = (client.post("/v1/completions", json=body) for body in bodies)
            return await asyncio.gather(*asked)

        found: dict[str, list[httpx.Response]] = {}
        try:
            for fault in ("1:500", "1:reset", "1:hang"):
                (await client.post(sick, json={"fail": [fault]})).raise_for_status()
                found[fault] = await ask_many(fault)
        finally:
            await client.post(sick, json={})

    for fault, answers in found.items():
        assert {answer.status_code for answer in answers} == {200}, fault
        assert {answer.headers["x-kvmesh-worker"] for answer in answers} <= {"w0", "w1"}
