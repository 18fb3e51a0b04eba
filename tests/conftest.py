import asyncio
import contextlib
import functools
import gc
import os
import shutil
import sys
import tempfile
import uuid
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import coverage
import httpx
import httpx2
import hypothesis
import pytest
import pytest_timeout
import structlog
import zmq

from kvmesh.app.ops.nats_server import NatsServer
from tests.nats_container import (
    nats_container,  # noqa: F401  a fixture
    nats_image,  # noqa: F401  a fixture
)

pytest_plugins = ["tests.reruns"]

# Commands without an address find the meshes of these tests, not those that somebody runs here.
os.environ["XDG_RUNTIME_DIR"] = RUNTIME = tempfile.mkdtemp(prefix="kvmesh-tests-")

# No deadlines: these machines are shared, and a slow example is no bug.
SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile(
    "dev", deadline=None, suppress_health_check=SLOW, max_examples=30
)
hypothesis.settings.register_profile(
    "ci", deadline=None, suppress_health_check=SLOW, max_examples=30, derandomize=True
)
hypothesis.settings.register_profile(
    "nightly", deadline=None, suppress_health_check=SLOW, max_examples=3000
)
hypothesis.settings.register_profile(
    "mutants",
    deadline=None,
    suppress_health_check=SLOW,
    max_examples=20,
    derandomize=True,
    database=None,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


LONG = {"chaos": "chaos", "release": "test-release", "nightly": "test-nightly"}
"""Markers of what is skipped unless `-m` asks for it, and the make targets that do."""


def pytest_sessionfinish() -> None:
    """Remove what is made above. Write down here what was covered: a process that takes over 10 s
    to exit, as it may on a busy machine, is killed by pytest-xdist.
    """
    shutil.rmtree(RUNTIME, ignore_errors=True)
    if (running := coverage.Coverage.current()) is not None:
        running.save()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what takes minutes, unless `-m` asks for it; begin with what waits for processes."""
    items.sort(key=lambda item: not any(map(item.get_closest_marker, ("integration", "browser"))))
    asked: str = config.getoption("-m")
    for item in items:
        found = [marker for marker in LONG if item.get_closest_marker(marker)]
        if found and not any(marker in asked for marker in found):
            item.add_marker(pytest.mark.skip(reason=f"takes long: make {LONG[found[0]]}"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let a rerun begin as the first try did.

    The watch of pytest-timeout stops at the first failure. And what the failed try left open is
    held by its traceback: it is let go here, else its warnings would fail the rerun.
    """
    if getattr(item, "execution_count", 1) == 1:
        return
    settings = pytest_timeout._get_item_settings(item)
    item.ihook.pytest_timeout_set_timer(item=item, settings=settings)
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


def leave_context(context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    """Do nothing for a context that a failed test left open.

    Its end would wait for its sockets, and they for the collector, which waits here.
    """
    del context


zmq.Context.__del__ = leave_context  # type: ignore[method-assign]  # of the test process only

# Each client reads the machine's certificates, for 25 ms, though it speaks plain HTTP; here they
# are read once.
for library in (httpx, httpx2):
    vars(library._transports.default)["create_ssl_context"] = functools.cache(
        library.create_ssl_context
    )


@pytest.fixture(autouse=True, scope="module")
def others_objects_are_not_looked_at() -> None:
    """Have a collection look at this module's objects alone: of a whole run's one takes 0.3 s."""
    gc.collect()
    gc.freeze()


Eventually = Callable[..., Awaitable[None]]


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """Let no test's logging be the next one's: what runs a command or follows a mesh here
    configures structlog for the whole process.
    """
    yield
    structlog.reset_defaults()


@pytest.fixture
def eventually() -> Eventually:
    """Wait until a condition holds; fails with its description after a deadline."""

    async def wait(
        condition: Callable[[], object], *, timeout_s: float = 60.0, what: str = ""
    ) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not condition():
            if asyncio.get_running_loop().time() > deadline:
                pytest.fail(f"not within {timeout_s:g} s: {what or condition}")
            await asyncio.sleep(0.002)

    return wait


Contexts = list[dict[str, Any]]


@pytest.fixture
async def stack() -> AsyncIterator[contextlib.AsyncExitStack]:
    """What a test enters is left behind it."""
    async with contextlib.AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def reported() -> Contexts:
    """What is reported to the event loop's exception handler; the test judges it."""
    contexts: Contexts = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: contexts.append(context))
    return contexts


@pytest.fixture
def namespace() -> str:
    """The subjects of one try of one test: the servers outlive it."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One real nats-server for the whole run; tests use streams of their own names."""
    folder = tmp_path_factory.mktemp("nats")
    server = NatsServer(Path(folder) / "store", log_path=Path(folder) / "nats.log")
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())
