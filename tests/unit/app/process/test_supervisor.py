"""Children that die, and restarts that fail."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from kvmesh.app.nats.server import NatsServer
from kvmesh.app.ops.up import keep_up
from kvmesh.app.process import supervisor
from kvmesh.app.process.supervisor import Child, ChildSpec
from tests.conftest import Eventually

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "RESTART_DELAY_S", 0.02)
    monkeypatch.setattr(supervisor, "RESTART_DELAY_MAX_S", 0.1)


SHORT = ChildSpec("short", ["--version"])
"""A child that ends by itself at once."""


async def test_a_child_whose_log_folder_is_gone_is_started_when_it_is_back(
    tmp_path: Path, eventually: Eventually, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    child = Child(SHORT, dict(os.environ), logs)
    await child.start()
    shutil.rmtree(logs)

    said = ""

    def has_said() -> bool:
        nonlocal said
        said += "".join(capsys.readouterr())
        return "child cannot be started" in said

    await eventually(has_said)
    assert "No such file or directory" in child.last_words()
    before = child.restarts
    logs.mkdir()
    await eventually(lambda: child.restarts > before)
    await child.stop()

    assert has_said()
    assert said.count("child cannot be started") == 1, said


async def test_a_child_that_the_system_refuses_to_start_is_tried_again(
    tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(python))
    child = Child(SHORT, dict(os.environ), tmp_path)
    await child.start()
    python.unlink()
    assert child.process is not None
    await child.process.wait()

    before = child.restarts
    python.symlink_to("/bin/true")
    await eventually(lambda: child.restarts > before)
    await child.stop()


async def test_a_nats_server_whose_folder_cannot_be_written_is_started_when_it_can(
    tmp_path: Path, eventually: Eventually, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "nats"
    server = NatsServer(store)
    await server.start()
    keeping = asyncio.create_task(keep_up("nats-server", server))
    try:
        shutil.rmtree(store)
        store.write_text("a file where the folder was")
        server.kill()
        await eventually(lambda: "child cannot be started" in "".join(capsys.readouterr()))

        store.unlink()

        await eventually(server.program.runs)
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await server.stop()
