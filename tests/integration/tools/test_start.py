"""What each process loads until it serves: nothing that it does not use yet."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from kvmesh.actors.messages import Status
from kvmesh.actors.wire import Subjects
from kvmesh.app.mesh.plane import event_plane
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.settings.roles import NatsSettings
from kvmesh_lab.mocker.command import Mocker
from tests.integration.support.live_router import free_port, mockers

pytestmark = pytest.mark.integration

PROGRAM: Final = """
import sys
before, path = set(sys.modules), sys.argv.pop()
from kvmesh.cli import main
try:
    main()
finally:
    with open(path, "w") as file:
        print(*sorted(set(sys.modules) - before), file=file)
"""

WHOLE: Final = frozenset({"cyclopts", "attr", "attrs", "msgspec", "typing_extensions", "xxhash"})
"""What reads settings, and hashes."""

SERVES: Final = WHOLE | {"structlog", "greenlet", "uvloop", "httptools", "sortedcontainers"}
COUNTS: Final = SERVES | {"prometheus_client"}
ON_NATS: Final = {"nats", "nacl", "_cffi_backend", "_sodium"}
ON_ZMQ: Final = {"zmq", "prometheus_client"}

MOST_OF: Final = {
    "router alone": COUNTS | ON_ZMQ,
    "router": COUNTS | ON_NATS,
    "picker": COUNTS | ON_NATS,
    "meta-router": COUNTS | ON_NATS,
    "worker": SERVES | ON_NATS | ON_ZMQ,
}

SLOW: Final = {"importlib.metadata", "tomllib", "unittest", "multiprocessing.pool", "xml.dom"}
"""Parts of the standard library that take 5 ms and more each; nats-py loads the first."""


def outside(modules: set[str]) -> set[str]:
    """Return the packages among `modules` that are neither ours nor Python's, nor colorama, which
    mkdocs brings and structlog loads where it is.
    """
    names = {name.partition(".")[0] for name in modules if "cython" not in name}
    return names - sys.stdlib_module_names - {"kvmesh", "colorama"}


def loaded_by(program: str) -> set[str]:
    line = f"import sys; before = set(sys.modules); {program}; print(*set(sys.modules) - before)"
    done = subprocess.run(
        [sys.executable, "-c", line], capture_output=True, text=True, check=True, timeout=60
    )
    return {*done.stdout.split()}


def test_the_command_line_loads_what_reads_flags_and_no_more() -> None:
    modules = loaded_by("import kvmesh.cli")

    assert outside(modules) <= {"cyclopts", "attr", "attrs", "typing_extensions"}
    assert not SLOW & modules


def test_the_settings_are_explained_without_what_they_set() -> None:
    modules = loaded_by("import kvmesh.cli, kvmesh.entries")

    assert outside(modules) <= WHOLE
    assert not {"asyncio", *SLOW} & modules
    assert not {name for name in modules if name.startswith("kvmesh.app")}


class Started:
    """A command in a process that writes what it has loaded when it ends."""

    def __init__(self, folder: Path, *line: str) -> None:
        self._path = folder / "modules"
        self.log = folder / "log"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *line, str(self._path)],
                stderr=log,
                env=os.environ | {"KVMESH_DIE_WITH_PARENT": "1"},
            )

    async def until(self, ready: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not await ready():
                assert self._process.poll() is None, self.log.read_text()
                await asyncio.sleep(0.02)

    async def modules(self) -> set[str]:
        """Return what it had loaded when it was told to end."""
        self._process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(self._process.wait, 30)
        return {*self._path.read_text().split()}

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


async def answers(port: int) -> bool:
    """Return whether a front door has nothing to wait for but members."""
    with contextlib.suppress(httpx.TransportError):
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            found = (await client.get("/ready")).json()
            return bool(found["ready"] or "no " in found["reason"])
    return False


@pytest.fixture
async def engine() -> AsyncIterator[Mocker]:
    async with mockers() as (mocker,):
        yield mocker


@pytest.mark.parametrize("role", list(MOST_OF))
async def test_a_role_loads_nothing_but_what_it_serves_with(
    role: str, engine: Mocker, nats_server: NatsServer, namespace: str, tmp_path: Path
) -> None:
    nats = ["--nats-url", nats_server.url, "--namespace", namespace]
    http = free_port()
    lines = {
        "router alone": ["router", "--worker", engine.url, "--http-port", str(http)],
        "router": ["router", *nats, "--http-port", str(http)],
        "picker": [
            "picker",
            *nats,
            "--http-port",
            str(http),
            "--grpc-port",
            "0",
            "--notice-s",
            "0",
        ],
        "meta-router": ["meta-router", *nats, "--http-port", str(http)],
        "worker": ["worker", "--engine-url", engine.url, *nats],
    }

    async def runs() -> bool:
        return "sidecar runs" in started.log.read_text()

    started = Started(tmp_path, *lines[role])
    try:
        await started.until(runs if role == "worker" else partial(answers, http))
        modules = await started.modules()
    finally:
        started.kill()

    assert outside(modules) <= MOST_OF[role]
    assert SLOW & modules <= ({"importlib.metadata"} if "nats" in modules else set())
    assert "kvmesh.app" in modules


async def test_the_first_command_loads_what_carries_it_and_is_answered(
    nats_server: NatsServer, namespace: str, tmp_path: Path
) -> None:
    http, nats = free_port(), ["--nats-url", nats_server.url, "--namespace", namespace]
    line = ["router", "--bucket=b", "--router-id=b-0", *nats, "--http-port", str(http)]
    plane = event_plane(NatsSettings(nats_url=nats_server.url, namespace=namespace), "admin")
    started = Started(tmp_path, *line)
    try:
        await started.until(partial(answers, http))
        await plane.connect()
        control = await plane.control()
        subject = Subjects(namespace, "b").router_control("b-0")
        found = await control.ask(subject, Status(), dict[str, Any], timeout_s=30)
        await control.close()
        modules = await started.modules()
    finally:
        started.kill()
        await plane.close()

    assert found["caught_up"] is True
    assert outside(modules) - MOST_OF["router"] >= {"faststream"}
