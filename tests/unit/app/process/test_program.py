import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

from kvmesh.app.process.program import Program

SLEEPS = ["/bin/sh", "-c", "echo here; exec sleep 60"]
STARTS_ONE = """
import os, sys
from pathlib import Path
from kvmesh.app.process.program import Program
program = Program(Path(sys.argv[1]))
program.start(["/bin/sh", "-c", "echo here; exec sleep 60"])
while not Path(sys.argv[1]).read_text():
    pass
print(program.process.pid, flush=True)
os.kill(os.getpid(), 9)
"""


async def test_a_program_runs_until_it_is_stopped(tmp_path: Path) -> None:
    program = Program(tmp_path / "log")
    await program.stop()

    program.start(SLEEPS)

    assert program.runs()
    await program.stop()
    assert not program.runs()


async def test_a_killed_program_has_ended_and_starts_again(tmp_path: Path) -> None:
    program = Program(tmp_path / "log")
    program.start(SLEEPS)

    program.kill()
    await program.wait_ended()

    assert not program.runs()
    program.start(SLEEPS)
    assert program.runs()
    program.kill()


async def test_a_frozen_program_is_stopped() -> None:
    program = Program()
    program.start(SLEEPS)
    program.signal(signal.SIGSTOP)

    async with asyncio.timeout(5):
        await program.stop()


def test_a_binary_that_is_not_there_ends_with_its_reason(tmp_path: Path) -> None:
    program = Program(tmp_path / "log")
    program.start(["/nowhere/at-all"])
    assert program.process is not None

    assert program.process.wait() == 1
    assert "/nowhere/at-all" in (tmp_path / "log").read_text()


def test_a_program_dies_with_its_parent(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", STARTS_ONE, str(tmp_path / "log")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    pid = int(done.stdout)

    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and lives(pid):
        pass

    assert not lives(pid)


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
