"""`kvmesh router --processes`: real processes behind one port, killed and ended under load."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.integration.support.live_router import free_port, mockers
from tests.integration.support.waiting import until, until_ready

pytestmark = pytest.mark.integration

COUNT: Final = 2
START_S: Final = 120.0
BODY: Final[dict[str, Any]] = {"model": "mock", "max_tokens": 4, "prompt": "Once upon a time. " * 9}


class Routers:
    """`kvmesh router --processes` over one simulated engine."""

    def __init__(self, process: Process, port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log = log
        self.url = f"http://127.0.0.1:{port}"

    def url_of(self, number: int) -> str:
        return f"http://127.0.0.1:{self.port + 1 + number}"

    async def until_ready(self, number: int) -> None:
        async with asyncio.timeout(START_S), httpx.AsyncClient() as client:
            while True:
                assert self.process.returncode is None, self.log.read_text(encoding="utf-8")
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get(f"{self.url_of(number)}/ready")).status_code == 200:
                        return
                await asyncio.sleep(0.05)

    def children(self) -> dict[int, int]:
        """Return the pid of each routing process by its number."""
        found = {}
        for path in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                pid = int(path.name)
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                reported = dict(
                    one.split(b"=", 1)
                    for one in (path / "environ").read_bytes().split(b"\0")
                    if b"=" in one
                )
                if parent == self.process.pid and b"KVMESH_PROCESS" in reported:
                    found[int(reported[b"KVMESH_PROCESS"].split(b"/")[0])] = pid
        return found

    async def end(self) -> int:
        self.process.terminate()
        async with asyncio.timeout(60):
            return await self.process.wait()


def free_ports(count: int) -> int:
    """Return the first of so many free ports in a row."""
    while True:
        first = free_port()
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


@pytest.fixture
async def engine() -> AsyncGenerator[str]:
    async with mockers(timing_profile="dynamo") as (mocker,):
        yield mocker.url


@pytest.fixture
async def routers(engine: str, tmp_path: Path) -> AsyncGenerator[Routers]:
    port, log = free_ports(COUNT + 2), tmp_path / "log"
    words = ["router", "--processes", str(COUNT), "--http-port", str(port), "--worker", engine]
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kvmesh", *words, "--router-id", "r", "--no-kv-events"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    made = Routers(process, port, log)
    try:
        for number in range(COUNT):
            await made.until_ready(number)
        yield made
    finally:
        if process.returncode is None:
            await made.end()


async def ask(url: str) -> httpx.Response:
    """Send one request on a connection of its own."""
    async with httpx.AsyncClient(timeout=60) as client:
        return await client.post(f"{url}/v1/completions", json=BODY)


async def test_processes_share_a_port_a_page_of_metrics_and_a_dashboard(routers: Routers) -> None:
    names: set[str] = set()
    async with asyncio.timeout(60):
        while len(names) < COUNT:
            names.add((await ask(routers.url)).headers["x-kvmesh-router"])
    async with httpx.AsyncClient(timeout=60) as client:
        own = await ask(routers.url_of(1))
        page = (await client.get(f"{routers.url}/metrics?names=vllm")).text
        plain = (await client.get(f"{routers.url}/metrics")).text
        shown = await client.get(f"{routers.url}/")
        await until_ready(client, f"http://127.0.0.1:{routers.port + 1 + COUNT}")
        whole = await client.get(shown.headers["location"])

    assert names == {"r-0", "r-1"}
    assert own.headers["x-kvmesh-router"] == "r-1"
    served = [line for line in page.splitlines() if 'outcome="finished",status="2xx"' in line]
    assert [line.partition("process=")[2][:3] for line in served] == ['"0"', '"1"']
    assert all(float(line.rpartition(" ")[2]) >= 1 for line in served)
    others = re.findall(r'^vllm:request_success_total\{process="(\d)"', page, re.MULTILINE)
    assert others == ["0", "1"]
    assert "vllm:" not in plain
    assert shown.status_code == 307
    assert whole.status_code == 200
    assert "kvmesh" in whole.text


async def test_a_killed_process_loses_what_it_had_begun_and_is_started_again(
    routers: Routers,
) -> None:
    """Whole answers under load, 8 clients. A client that sends again what was closed before a byte
    of an answer, as SDKs do, gets all of its answers; the other process has no failure at all.
    """
    begun_again = answered = 0
    ended = False

    async def client() -> None:
        nonlocal begun_again, answered
        while not ended:
            try:
                response = await ask(routers.url)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.ConnectError):
                begun_again += 1
                continue
            assert response.status_code == 200, response.text
            answered += 1

    clients = [asyncio.ensure_future(client()) for _ in range(8)]
    await until(lambda: answered > 40)
    first = routers.children()
    os.kill(first[0], signal.SIGKILL)
    before = answered
    await until(lambda: answered > before + 40)
    await routers.until_ready(0)
    await until(lambda: len(routers.children()) == COUNT)
    ended = True
    await asyncio.gather(*clients)
    second = routers.children()

    assert begun_again <= 8
    assert second[0] != first[0]
    assert second[1] == first[1]
    assert (await ask(routers.url_of(0))).headers["x-kvmesh-router"] == "r-0"
    page = (await asyncio.to_thread(httpx.get, f"{routers.url}/metrics", timeout=60)).text
    failed = [
        line
        for line in page.splitlines()
        if line.startswith("kvmesh_requests_total") and not line.endswith(" 0.0")
    ]
    assert all('outcome="finished"' in line for line in failed)


async def test_at_the_end_all_drain(routers: Routers) -> None:
    """A stream at each process when the one that supervises them is asked to end."""
    long = BODY | {"max_tokens": 200, "stream": True}
    begun = asyncio.Semaphore(0)

    async def stream(number: int) -> str:
        url = f"{routers.url_of(number)}/v1/completions"
        text = ""
        async with (
            httpx.AsyncClient(timeout=60) as client,
            client.stream("POST", url, json=long) as response,
        ):
            async for piece in response.aiter_text():
                begun.release()
                text += piece
        return text

    streams = [asyncio.ensure_future(stream(number)) for number in range(COUNT)]
    for _ in streams:
        await begun.acquire()

    code = await routers.end()

    assert code == 0
    assert all(text.endswith("data: [DONE]\n\n") for text in await asyncio.gather(*streams))
    assert routers.children() == {}


async def test_wrong_settings_end_all_of_them_with_their_words(engine: str) -> None:
    port = free_ports(COUNT + 2)
    words = ["router", "--processes", "2", "--http-port", str(port), "--worker", engine]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kvmesh", *words, "--kv-cost", "no-such-formula"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(START_S):
        reported, _ = await process.communicate()

    assert process.returncode != 0
    assert b"no-such-formula" in reported
    assert b"a process cannot start" in reported
