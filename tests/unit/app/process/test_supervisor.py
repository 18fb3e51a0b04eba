"""Children that die, and restarts that fail."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from kvmesh.app.ops.mesh_start import keep_up
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.app.process import supervisor
from kvmesh.app.process.supervisor import Child, ChildSpec, Progress, wait_for_ready
from kvmesh.errors import ConfigError, TransportError
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
    child.proven = True
    await child.start()
    python.unlink()
    assert child.process is not None
    await child.process.wait()

    before = child.restarts
    python.symlink_to("/bin/true")
    await eventually(lambda: child.restarts > before)
    await child.stop()


REFUSES = ChildSpec("router-a-0", ["router", "--worker", "no url"], "http://127.0.0.1:9/ready")
"""A child that ends with an error of its own."""


async def test_a_child_with_a_wrong_setting_is_not_started_again_and_its_words_are_told(
    tmp_path: Path,
) -> None:
    (tmp_path / "router-a-0.log").write_text("kvmesh: of an earlier run\n")
    child = Child(REFUSES, dict(os.environ), tmp_path)
    await child.start()

    with pytest.raises(ConfigError) as caught:
        await wait_for_ready([child])
    await child.stop()

    assert str(caught.value).startswith("router-a-0 cannot start: --worker 'no url'")
    assert "earlier run" not in str(caught.value)
    assert (child.restarts, child.refused) == (0, 2)


async def test_a_child_that_ends_without_an_error_line_shows_the_end_of_its_log(
    tmp_path: Path, eventually: Eventually
) -> None:
    child = Child(ChildSpec("worker-0", ["worker"]), dict(os.environ), tmp_path)
    await child.start()
    await eventually(lambda: child.refused != 0)

    with pytest.raises(ConfigError, match=r"(?s)^worker-0 cannot start: .*--engine-url"):
        await wait_for_ready([child])
    await child.stop()


def test_a_start_moves_while_one_more_serves_or_a_log_says_something_new(tmp_path: Path) -> None:
    child = Child(ChildSpec("router-a-0", []), {}, tmp_path)
    log, progress = tmp_path / "router-a-0.log", Progress()
    idle: list[int] = []
    for line in (
        "10:01 starts",
        "10:02 reads 4 blocks",
        "10:03 reads 5 blocks",
        "",
        "10:09 serves",
    ):
        log.write_text(log.read_text() + f"{line}\n" if log.exists() else f"{line}\n")
        progress.step([child], 0)
        idle.append(progress.idle_steps)
    progress.step([child], 1)

    assert idle == [0, 0, 1, 2, 0]
    assert progress.idle_steps == 0


def test_what_is_remembered_of_logs_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "MOST_SAID", 1)
    child, progress = Child(ChildSpec("w", []), {}, tmp_path), Progress()
    (tmp_path / "w.log").write_text("starts\nreads\n")

    progress.step([child], 0)
    progress.step([child], 0)

    assert progress.idle_steps == 1


async def test_who_waits_says_for_whom_and_gives_up_when_nothing_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "TOLD_EACH_S", 0.0)
    monkeypatch.setattr(supervisor, "POLL_S", 0.001)
    child = Child(ChildSpec("engine-0", [], "http://127.0.0.1:1/health"), {}, tmp_path)
    told: list[str] = []

    with pytest.raises(TransportError, match=r"engine-0 is not ready at .*, and nothing moved in"):
        await wait_for_ready([child], 3, told.append)

    assert set(told) == {"waiting for engine-0 …"}


async def test_a_child_that_was_started_before_is_started_again_whatever_it_ended_with(
    tmp_path: Path, eventually: Eventually
) -> None:
    child = Child(REFUSES, dict(os.environ), tmp_path)
    child.proven = True
    await child.start()

    await eventually(lambda: child.restarts > 0)
    await child.stop()

    assert child.refused == 0


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
