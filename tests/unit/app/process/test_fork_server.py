"""A fork server in a process of its own, since it forks the process that makes it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

BEGIN = """
import asyncio, os, signal, sys, time
from functools import partial
from pathlib import Path
from kvmesh.app.process.fork_server import ForkServer

read = []

def prepare(args):
    read.append(args)
    return partial(act, args)

def act(args):
    # One write: children of one moment share the log, and `print` writes word by word.
    os.write(1, " ".join([*args, os.environ["WORD"], f"{len(read)}\\n"]).encode())
    if args[0] == "sleep":
        time.sleep(60)
    sys.exit(int(args[1]))

folder = Path(sys.argv[1])
server = ForkServer(["colorsys"], prepare)
assert "colorsys" in sys.modules

async def begin(*args):
    child = await server.spawn(args, {"WORD": "read"}, folder / "log")
    return child

async def said(*words):
    while not (folder / "log").exists() or " ".join(words) not in (folder / "log").read_text():
        await asyncio.sleep(0.01)

async def main():
    server.listen()
"""

END = """
    await server.close()

asyncio.run(asyncio.wait_for(main(), 30))
"""


def run(folder: Path, body: str) -> str:
    """Run `body` in the program's `main`; return what its children wrote."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    program = [sys.executable, "-c", BEGIN + lines + END, str(folder)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return (folder / "log").read_text()


def test_a_child_has_its_arguments_environment_and_log_and_its_code_is_told(
    tmp_path: Path,
) -> None:
    text = run(
        tmp_path,
        """
server.read([("exit", "3"), ("exit", "4")])
first, second = await begin("exit", "3"), await begin("exit", "0")
assert (await first.wait(), await second.wait()) == (3, 0)
assert first.pid != second.pid and first.returncode == 3
""",
    )

    assert sorted(text.splitlines()) == ["exit 0 read 3", "exit 3 read 2"]


def test_a_child_can_be_ended_and_is_shown_by_its_command_line(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
asked, killed = await begin("sleep", "1"), await begin("sleep", "2")
await said("sleep 1")
await said("sleep 2")
line = Path(f"/proc/{asked.pid}/cmdline").read_bytes()
assert line.split(b"\\0")[0].endswith(b" -m kvmesh sleep 1"), line
asked.terminate()
killed.kill()
assert (await asked.wait(), await killed.wait()) == (-signal.SIGTERM, -signal.SIGKILL)
killed.kill()
""",
    )


def test_children_of_a_server_that_is_gone_count_as_ended(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
child = await begin("sleep", "1")
await said("sleep 1")
os.kill(server.pid, signal.SIGKILL)
assert await child.wait() == -signal.SIGTERM
assert not server.serves
os.kill(child.pid, signal.SIGKILL)
child.terminate()
try:
    await begin("sleep", "2")
except OSError:
    pass
else:
    raise AssertionError("forked by nobody")
""",
    )
