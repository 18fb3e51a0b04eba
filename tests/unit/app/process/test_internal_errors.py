import asyncio
import subprocess
import sys
from typing import Any

import pytest
from structlog.testing import capture_logs

from kvmesh.app.process.internal_errors import InternalErrors
from kvmesh.app.views.figure import Sources
from kvmesh.app.views.process_figures import INTERNAL_ERRORS
from kvmesh.tasks import guarded, report

PROGRAM = """
import asyncio
from kvmesh.app.process.running import run
from kvmesh.tasks import guarded, supervise

def fail():
    raise ValueError("a bug")

async def fails():
    fail()

async def main(stop):
    {begin}
    await stop.wait()

run(main)
"""


@pytest.fixture
async def errors() -> InternalErrors:
    errors = InternalErrors()
    asyncio.get_running_loop().set_exception_handler(errors.handle)
    return errors


async def test_an_error_without_words_is_reported_too(errors: InternalErrors) -> None:
    """uvloop reports what a protocol's factory raises with the exception alone."""
    with capture_logs() as lines:
        errors.handle(asyncio.get_running_loop(), {"exception": ValueError("a bug")})
        errors.handle(asyncio.get_running_loop(), {"exception": OSError("gone")})

    assert [line["event"] for line in lines] == ["internal error", "connection failed"]
    assert sum(errors.counts().values()) == 1


async def test_a_report_is_counted_and_logged_with_its_traceback(errors: InternalErrors) -> None:
    def divide() -> None:
        _ = 1 // 0

    call = guarded("timer", divide)

    with capture_logs() as lines:
        for _ in range(3):
            call()

    assert errors.counts() == {"timer": 3}
    (family,) = Sources(INTERNAL_ERRORS.of(lambda: errors)).collect()
    assert [(one.name, one.labels, one.value) for one in family.samples] == [
        ("kvmesh_internal_errors_total", {"task": "timer"}, 3.0)
    ]
    (line,) = lines
    assert (line["event"], line["task"], line["count"]) == ("internal error", "timer", 1)
    assert line["exc_info"].__traceback__ is not None
    assert errors.fatal is None


async def test_what_escapes_a_callback_of_the_loop_is_counted(errors: InternalErrors) -> None:
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    with capture_logs():
        loop.call_soon(int, "no number")
        loop.call_soon(done.set)
        await done.wait()

    assert errors.counts() == {"callback": 1}


async def test_a_task_that_nobody_awaits_is_counted_under_its_function(
    errors: InternalErrors,
) -> None:
    async def forgotten() -> None:
        raise KeyError("bug")

    with capture_logs():
        task = asyncio.get_running_loop().create_task(forgotten())
        await asyncio.wait({task})
        del task
        await asyncio.sleep(0)

    (name,) = errors.counts()
    assert name.endswith("forgotten")


async def test_a_socket_that_ends_badly_is_no_fault_of_ours(errors: InternalErrors) -> None:
    context: dict[str, Any] = {"message": "Fatal write error", "exception": TimeoutError("gone")}

    with capture_logs() as lines:
        asyncio.get_running_loop().call_exception_handler(context)

    assert errors.counts() == {}
    assert [line["log_level"] for line in lines] == ["warning"]


async def test_the_first_fatal_error_is_the_one_that_ends_the_process(
    errors: InternalErrors,
) -> None:
    first = ValueError("first")

    with capture_logs():
        report("actors", first, fatal=True)
        report("actors", KeyError("second"), fatal=True)
        await errors.wait_fatal()

    assert errors.fatal is first
    assert errors.counts() == {"actors": 2}


@pytest.mark.parametrize(
    "begin",
    [
        'kept = supervise("actors", fails, "end")',
        'asyncio.get_running_loop().call_later(0.0, guarded("engine", fail, "end"))',
    ],
    ids=["a task that nobody awaits", "a timer"],
)
def test_a_fatal_error_ends_the_process_with_a_code(begin: str) -> None:
    code = PROGRAM.format(begin=begin).replace(
        "run(main)", "import kvmesh.app.process.running as r; r.END_S = 0.05; run(main)"
    )

    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, timeout=60, text=True
    )

    assert ended.returncode == 1
    assert "ValueError: a bug" in ended.stderr
    assert "internal error" in ended.stdout + ended.stderr
