"""Logs of a real mesh, searched with the commands that the field's guides give."""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from kvmesh.app.ops.nats_server import NatsServer
from tests.chaos.process import MeshProcess, fixed_ports
from tests.integration.support.small_mesh import answer_with, door, running
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

FORMATS = ("console", "json")
ROUTING = "(routing|overlap|score)"
CACHE = "(cache|hit|miss)"
CREATED = "KV.*created|KV.*removed"
FORMULA = r"Formula for worker-\w+: [\d.]+ = .* \(cached_blocks: \d+\)"
PROMPTS = 4


class LoggingMesh:
    """One engine with two sidecars, so two workers, and two routers: one of each log format."""

    def __init__(self, folder: Path, nats_url: str) -> None:
        self._folder = folder
        engine, events, replay, *routers = fixed_ports(5)
        nats = ("--nats-url", nats_url, "--log-level", "debug")
        feeds = ("--kv-events-port", str(events), "--kv-replay-port", str(replay))
        mocker = ("mocker", "--http-port", str(engine), "--timing-profile", "instant", *feeds)
        self.engine = self._process(
            "engine", engine, "console", *mocker, "--num-gpu-blocks-override", "40"
        )
        self.routers = {
            shape: self._process(f"router-{shape}", port, shape, "router", *door(port), *nats)
            for shape, port in zip(FORMATS, routers, strict=True)
        }
        sidecar = ("worker", "--engine-url", self.engine.url, *nats)
        self.sidecars = {
            shape: self._process(
                f"sidecar-{shape}", 0, shape, *sidecar, "--worker-id", f"worker-{shape}"
            )
            for shape in FORMATS
        }

    def _process(self, name: str, port: int, shape: str, *arguments: str) -> MeshProcess:
        log = self._folder / f"{name}.log"
        return MeshProcess(name, f"http://127.0.0.1:{port}", arguments, log, shape)

    def all(self) -> list[MeshProcess]:
        return [self.engine, *self.routers.values(), *self.sidecars.values()]

    def grep(self, process: MeshProcess, expression: str) -> list[str]:
        """Return what `grep -E` finds in a process's log."""
        command = ("grep", "-aE", expression, str(self._folder / f"{process.name}.log"))
        found = subprocess.run(command, check=False, capture_output=True, text=True)
        return found.stdout.splitlines()


def at(level: str, lines: list[str]) -> list[str]:
    """Return the lines of a level, in either format: all that is left when it is the least."""
    return [line for line in lines if re.search(rf'\[{level} *|"level": "{level}"', plain(line))]


def plain(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


async def test_greps_find_decisions_hits_and_blocks_in_both_formats(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats")
    await server.start()
    mesh = LoggingMesh(tmp_path, server.url)
    try:
        async with running(*mesh.all()) as client:
            for router in mesh.routers.values():
                await answer_with(client, router, "/v1/overview", 200, "worker-json")
                await answer_with(client, router, "/v1/overview", 200, "worker-console")
            for router in mesh.routers.values():
                await ask(client, router)
            for shape in FORMATS:
                await look_into_a_routers_log(mesh, mesh.routers[shape])
                await look_into_a_sidecars_log(mesh, mesh.sidecars[shape])
    finally:
        await server.stop()


async def ask(client: httpx.AsyncClient, router: MeshProcess) -> None:
    """Send prompts of 20 blocks, each twice: a cache of 40 has to evict."""
    for number in range(PROMPTS):
        prompt = f"{router.name} {number} " * 20
        for _ in range(2):
            body = {"model": "mock", "max_tokens": 1, "prompt": prompt[:320]}
            answer = await client.post(f"{router.url}/v1/completions", json=body)
            assert answer.status_code == 200, answer.text


async def look_into_a_routers_log(mesh: LoggingMesh, router: MeshProcess) -> None:
    lines = at("debug", mesh.grep(router, ROUTING))
    candidates = [line for line in lines if re.search(FORMULA, plain(line))]
    decisions = [plain(line) for line in lines if "KV overlap scores: {" in line]

    ids = Counter(re.findall(r'request_id(?:=|": ")([\w#-]+)', plain(" ".join(candidates))))
    assert set(ids.values()) == {2}, "one line a candidate"
    assert len(ids) == len(decisions) == 2 * PROMPTS
    assert all(re.search(r"KV overlap scores: {worker-\w+: \d+ blocks, ", one) for one in decisions)
    assert all(re.search(r"Load scores: {worker-\w+: [\d.]+ blocks, ", one) for one in decisions)
    assert all(re.search(r"Final scores: {worker-\w+: [\d.]+, ", one) for one in decisions)
    assert all(re.search(r"Selected worker-\w+ \(", one) for one in decisions)
    assert any("(best score: " in one for one in decisions)

    def usual(expression: str) -> Callable[[], list[str]]:
        return lambda: at("info", mesh.grep(router, expression))

    await until(usual(ROUTING), what="routing at info")
    await until(usual(CREATED), what="KV blocks at info")
    assert any("hit_rate" in line for line in usual(CACHE)())


async def look_into_a_sidecars_log(mesh: LoggingMesh, sidecar: MeshProcess) -> None:
    await until(lambda: at("debug", mesh.grep(sidecar, CREATED)), what="KV blocks of each batch")
    await until(lambda: at("info", mesh.grep(sidecar, CREATED)), what="KV blocks at info")
    (line, *_) = [one for one in at("info", mesh.grep(sidecar, CACHE)) if "hit_rate" in one]
    for field in ("cache_usage", "hit_tokens", "miss_tokens", "kv_blocks_created"):
        assert field in line
    if sidecar.name.endswith("json"):
        reported = json.loads(line)
        assert (
            reported["kv_blocks_created"] - reported["kv_blocks_removed"]
            == reported["kv_blocks"]
            > 0
        )
        assert reported["hit_tokens"] > 0
        assert reported["kv_blocks_removed"] > 0
