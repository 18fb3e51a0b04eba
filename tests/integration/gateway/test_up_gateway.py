"""`kvmesh up --gateway`: a real Envoy, two pickers, simulated engines, in one command."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from kvmesh.settings.roles import UpSettings
from kvmesh_lab.demo.own_mesh import free_base

pytestmark = pytest.mark.integration

WITHIN_S = 60.0
SETTINGS = UpSettings(engines=3, gateway=True)
PREFIX = "Answer in the words of a tide table. " * 20


def eventually(check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not check():
        assert time.monotonic() < deadline, f"not within {WITHIN_S} s: {what}"
        time.sleep(0.05)


class Mesh:
    def __init__(self, base: int, log: Path) -> None:
        self.base = base
        self.url = f"http://127.0.0.1:{base}"
        self.log = log
        self.openai = OpenAI(base_url=f"{self.url}/v1", api_key="-", max_retries=0)

    def chat(self, words: str) -> tuple[str, str, int]:
        """Return the worker that answered, the picker that chose it, and what was reused."""
        raw = self.openai.chat.completions.with_raw_response.create(
            model="mock",
            messages=[{"role": "system", "content": PREFIX}, {"role": "user", "content": words}],
            max_tokens=4,
        )
        usage = raw.parse().usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        reused = usage.prompt_tokens_details.cached_tokens or 0
        return raw.headers["x-kvmesh-worker"], raw.headers["x-kvmesh-router"], reused

    def pids(self, *words: str) -> list[int]:
        """Return the processes of this mesh whose command line has `words`."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found += [int(entry.name)] if all(word in line for word in words) else []
        return found


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    folder = tmp_path_factory.mktemp("up")
    base, log = free_base(SETTINGS), folder / "up.log"
    words = ["up", "--gateway", "--engines", str(SETTINGS.engines), "--http-port", str(base)]
    words += ["--data-dir", str(folder / "data"), "--speedup-ratio", "50"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "kvmesh", *words], stdout=file, stderr=file
        )
        try:
            eventually(lambda: "try:" in log.read_text() or process.poll() is not None, "up")
            assert process.poll() is None, log.read_text()
            one = Mesh(base, log)
            with one.openai:
                eventually(lambda: knows_all(one), "the pickers know every worker")
                yield one
        finally:
            process.terminate()
            process.wait(30)
    assert process.returncode == 0, log.read_text()


def knows_all(mesh: Mesh) -> bool:
    return all(
        len(httpx.get(f"http://127.0.0.1:{mesh.base + 1 + number}/v1/status").json()["workers"])
        == SETTINGS.engines
        for number in range(SETTINGS.replicas)
    )


def test_the_second_chat_goes_where_the_prefix_is_whichever_picker_is_asked(mesh: Mesh) -> None:
    first, _, reused = mesh.chat("one")

    later = [mesh.chat(f"number {number}") for number in range(6)]

    assert reused == 0
    assert {worker for worker, _, _ in later} == {first}
    assert {picker for _, picker, _ in later} == {"chat-0", "chat-1"}
    assert min(reused for *_, reused in later) > 700


def test_a_stream_and_the_models_come_through_the_gateway(mesh: Mesh) -> None:
    stream = mesh.openai.chat.completions.create(
        model="mock", messages=[{"role": "user", "content": "hi"}], max_tokens=5, stream=True
    )

    assert len([chunk for chunk in stream if chunk.choices]) >= 5
    assert [model.id for model in mesh.openai.models.list()] == ["mock"]


def test_a_killed_picker_and_a_killed_envoy_come_back(mesh: Mesh) -> None:
    worker = mesh.chat("before")[0]
    [picker] = mesh.pids("kvmesh picker", f"--grpc-port {mesh.base + 400}")

    os.kill(picker, signal.SIGKILL)
    during = [mesh.chat(f"during {number}") for number in range(5)]
    [envoy] = mesh.pids("envoy", str(mesh.log.parent))
    os.kill(envoy, signal.SIGKILL)
    eventually(lambda: answers(mesh), "Envoy serves again")

    homes = [one[0] for one in during]
    assert homes.count(worker) >= 4, during  # a machine without time to spare moved one, once
    eventually(lambda: "chat-0" in {mesh.chat("after")[1] for _ in range(4)}, "chat-0 is back")
    assert re.search("child died", mesh.log.read_text())


def answers(mesh: Mesh) -> bool:
    try:
        return httpx.get(f"{mesh.url}/v1/models").status_code == 200
    except httpx.TransportError:
        return False


def test_without_the_wheel_the_remedy_is_said_and_nothing_is_started(tmp_path: Path) -> None:
    nowhere = "import sysconfig; sysconfig.get_path = lambda _: '/nowhere'"
    program = f"{nowhere}; from kvmesh.cli import main; main()"
    argv = [sys.executable, "-c", program, "up", "--gateway", "--data-dir", str(tmp_path / "data")]

    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, env={**os.environ, "PATH": "/bin"}
    )

    assert done.returncode != 0
    assert "pip install 'kvmesh[gateway]'" in done.stderr
    assert not (tmp_path / "data").exists()
