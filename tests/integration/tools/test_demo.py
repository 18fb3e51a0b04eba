"""`kvmesh demo` against a running router, and with a mesh of its own."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvmesh.errors import ConfigError, TransportError
from kvmesh_lab.demo.command import DemoSettings, run_demo
from kvmesh_lab.demo.result import DemoReport, exit_code, print_report
from kvmesh_lab.mocker.command import MockerOptions
from tests.integration.support.live_router import engine, free_port, router

pytestmark = pytest.mark.integration

LITTLE = ("--engines", "2", "--buckets", "one", "--replicas", "1", "--speedup-ratio", "20")


@pytest.fixture
async def url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """Serve a router alone over two engines, so many times as fast as real ones."""
    async with contextlib.AsyncExitStack() as stack:
        engines: list[str] = []
        for _ in range(2):
            options = MockerOptions(
                port=0,
                kv_events_port=0,
                replay_port=0,
                speedup_ratio=getattr(request, "param", 10.0),
                max_model_len=32768,
            )
            engines.append((await stack.enter_async_context(engine(options))).url)
        yield await stack.enter_async_context(router(engines))


async def show(**settings: Any) -> DemoReport:
    return await run_demo(DemoSettings(**settings), Console(quiet=True))


async def test_a_running_router_is_measured_under_each_policy(url: str) -> None:
    report = await show(url=f"{url}/v1", load=("light",), mode=("kv", "round-robin"), scale=0.25)

    assert (report.where, report.model, report.workers) == (url, "mock", ["w0", "w1"])
    found = {part.demonstration: part for part in report.parts}
    assert len(found) == 4
    assert not any(part.errors for part in report.parts)
    shared = found["shared system prompt"].scene
    assert shared.passes["kv"].hit_rate > shared.passes["round-robin"].hit_rate > 0.0
    assert shared.passes["kv"].hit_rate == pytest.approx(shared.passes["kv"].ceiling, abs=0.01)
    talk = found["multi-turn"].scene
    assert talk.passes["kv"].same_worker == 1.0
    assert talk.passes["kv"].hit_rate == pytest.approx(talk.passes["kv"].ceiling, abs=0.01)
    assert talk.passes["round-robin"].same_worker == 0.0
    text = StringIO()
    print_report(report, Console(file=text, width=120))
    assert "70% to 90%" in text.getvalue()
    assert "promises kept: kv " in text.getvalue()


@pytest.mark.parametrize("url", [0.5], indirect=True)
async def test_failed_requests_are_told_and_no_success(url: str) -> None:
    # Time enough for one token, even on a busy machine, and for none of the demonstrations.
    report = await show(url=url, load=("printed",), mode=("kv",), timeout_s=0.4)

    text = StringIO()
    print_report(report, Console(file=text, width=120))

    assert all("timeout" in error for part in report.parts for error in part.errors)
    assert "failed: kv: timeout" in text.getvalue()
    assert exit_code(report) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mode": ("kv", "direct")}, "--mode 'direct'"),
        ({"load": ("heavy",)}, "--load 'heavy'"),
        ({"load": ()}, "--load"),
        ({"url": "127.0.0.1:8000"}, "--url"),
    ],
)
async def test_settings_that_cannot_be_meant_are_refused(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        await show(**settings)


async def test_a_url_where_nobody_listens_and_an_unknown_model_are_told(url: str) -> None:
    with pytest.raises(TransportError, match="start it"):
        await show(url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(TransportError, match=r"no usable worker serves 'other'.*mock"):
        await show(url=url, model="other")


def children(pid: int) -> list[int]:
    """Return the processes below `pid`."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(one) for one in text.split()]


async def all_ended(pids: list[int]) -> None:
    """Return when none of the processes is left."""
    left = {one: Path(f"/proc/{one}") for one in pids}
    deadline = time.monotonic() + 10.0
    while left := {one: path for one, path in left.items() if path.exists()}:
        reported = {one: (path / "status").read_text()[:200] for one, path in left.items()}
        assert time.monotonic() < deadline, reported
        await asyncio.sleep(0.05)


@pytest.fixture
def own() -> Iterator[subprocess.Popen[str]]:
    """Start a demo with a small mesh of its own."""
    command = [sys.executable, "-m", "kvmesh", "demo", *LITTLE, "--mode", "kv", "--json"]
    with subprocess.Popen(
        [*command, "--load", "printed", "--load", "light"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "200"},
    ) as process:
        yield process
        process.kill()


async def test_its_own_mesh_serves_and_ends_with_it(own: subprocess.Popen[str]) -> None:
    assert own.stderr is not None
    while "shared system prompt, printed" not in await asyncio.to_thread(own.stderr.readline):
        assert own.poll() is None
    below = children(own.pid)
    out, errors = await asyncio.to_thread(own.communicate, timeout=60)

    report = json.loads(out)
    assert own.returncode in {0, 1}, errors
    assert len(report["workers"]) == 2
    assert [part["errors"] for part in report["parts"]] == [[]] * 8
    # NATS, two engines with sidecars, a router, the meta-router.
    assert len(below) >= 7
    await all_ended(below)


async def test_an_interrupt_ends_the_mesh_too(own: subprocess.Popen[str]) -> None:
    assert own.stderr is not None
    while "shared system prompt, printed" not in await asyncio.to_thread(own.stderr.readline):
        assert own.poll() is None
    below = children(own.pid)

    own.send_signal(signal.SIGINT)
    await asyncio.to_thread(own.communicate, timeout=60)

    assert own.returncode == 130
    assert below
    await all_ended(below)


def test_streams_are_whole_whatever_is_killed() -> None:
    command = [sys.executable, "-m", "kvmesh", "demo", "--kill", "--json", "--engines", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)

    rounds = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert [one["killed"].partition("-")[0] for one in rounds] == ["engine", "router", "engine"]
    assert [(one["equal"], one["errors"]) for one in rounds] == [(24, 0)] * 3
    assert sum(one["cut"] for one in rounds) > 0
