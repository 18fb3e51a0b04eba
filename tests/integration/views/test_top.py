"""`kvmesh top` against a real router, in a real terminal of its own."""

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator

import pytest

from kvmesh.client import AsyncClient
from tests.integration.support import live_router
from tests.integration.support.live_router import mockers

# Workers of a parallel test run ignore SIGINT, and so would what they start.
TOP = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from kvmesh.cli import main
sys.argv = ["kvmesh", "top", *sys.argv[1:]]
main()
"""

pytestmark = pytest.mark.integration


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with (
        mockers() as (engine,),
        live_router.router([engine.url]) as url,
    ):
        yield url


async def send(url: str) -> str:
    async with AsyncClient(url) as client:
        request = {"model": "mock", "max_tokens": 2, "prompt": "Once upon a time. " * 20}
        return (await client.kv(request)).request_id


async def run_once(url: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kvmesh", "top", "--once", "--url", url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"COLUMNS": "160"},
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_once_prints_the_present(url: str) -> None:
    request_id = await send(url)

    code, out, err = await run_once(url)

    assert (code, err) == (0, "")
    assert "w0" in out
    assert request_id[:16] in out


async def test_nobody_there_is_one_line_on_standard_error() -> None:
    code, out, err = await run_once(f"http://127.0.0.1:{live_router.free_port()}")

    assert (code, out) == (2, "")
    assert err.startswith("kvmesh: ")
    assert err.count("\n") == 1


async def test_a_terminal_shows_requests_as_they_come_and_ends_on_ctrl_c(url: str) -> None:
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", TOP, "--interval-s", "0.1", "--url", url),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "160", "LINES": "50"},
    )
    os.close(terminal)
    os.set_blocking(screen, False)

    async with live_router.ended(process):
        shown = await read_until(screen, "w0")
        request_id = await send(url)
        shown = await read_until(screen, request_id[:16])
        process.send_signal(signal.SIGINT)
        code = await asyncio.wait_for(process.wait(), 60)
    os.close(screen)

    assert "workers" in shown
    assert code == 0


async def read_until(screen: int, wanted: str) -> str:
    """Return what the terminal showed, without its control codes, once `wanted` is in it."""
    shown = ""
    deadline = asyncio.get_running_loop().time() + 60.0
    while wanted not in shown:
        assert asyncio.get_running_loop().time() < deadline, shown
        await asyncio.sleep(0.02)
        try:
            data = os.read(screen, 65536)
        except BlockingIOError:
            continue
        shown += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode(errors="replace"))
    return shown
