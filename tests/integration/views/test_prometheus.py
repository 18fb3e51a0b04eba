"""What dashboard and alarms ask, asked of a real Prometheus over a live mesh: `make chaos`."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.integration.deploy.test_deploy import ALERTS, DEPLOY, alarms, dashboard_expressions
from tests.integration.mesh.test_mesh import free_base
from tests.integration.support.live_router import free_port

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.timeout(300),
]

QUIET = {
    "kvmesh_shadow_overlap_blocks_total",
    "kvmesh_queue_wait_seconds",
    "kvmesh_token_parity_doubted",
    "kvmesh_slo_requests_total",
    "kvmesh_worker_failures_total",
    "kvmesh_program_waits_seconds",
    "kvmesh_program_touch",
}
"""What this mesh has none of: shadow policies, requests held, models in doubt, targets, failures,
turns held, touches.
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if shutil.which("prometheus") is None:
        pytest.skip("no prometheus on this machine: apt-get install prometheus")
    return tmp_path


@contextlib.contextmanager
def running(log: Path, *words: str | Path, **environment: str) -> Iterator[None]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=os.environ | environment,
        )
    try:
        yield
        assert process.poll() is None, log.read_text()[-2000:]
    finally:
        process.terminate()
        process.wait(30)


def take_snapshots(log: Path) -> None:
    nats_url = re.search(r"nats://[0-9.:]+", log.read_text())
    assert nats_url is not None
    for bucket in BUCKETS:
        take = (sys.executable, "-m", "kvmesh", "snapshot", "take", bucket)
        subprocess.run([*take, "--nats-url", nats_url[0]], check=True, timeout=60)


def configuration(folder: Path, base: int) -> Path:
    """Write compose's configuration with the ports of a `kvmesh up` in place of its names.

    That has one meta-router, sidecars without a port and no exporter of NATS.
    """
    made = yaml.safe_load((DEPLOY / "compose/prometheus.yml").read_text())
    made["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    made["rule_files"] = [str(ALERTS)]
    names = {"meta-router-0:8000": base}
    for order, bucket in enumerate(BUCKETS):
        for number in (0, 1):
            names[f"router-{bucket}-{number}:8000"] = base + 1 + 2 * order + number
            names[f"engine-{bucket}-{number}:8000"] = base + 100 + order + 2 * number
    for job in made["scrape_configs"]:
        for one in job["static_configs"]:
            there = [names[target] for target in one["targets"] if target in names]
            one["targets"] = [f"127.0.0.1:{port}" for port in there]
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(made))
    return path


BUCKETS = ("chat", "code")


async def test_every_expression_has_an_answer_and_no_alarm_fires(folder: Path) -> None:
    base, port = free_base(), free_port()
    up = [sys.executable, "-m", "kvmesh", "up", "--http-port", str(base), "--data-dir", str(folder)]
    prometheus = [
        *("prometheus", f"--config.file={configuration(folder, base)}"),
        *(f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address=127.0.0.1:{port}"),
    ]
    with (
        running(folder / "up.log", *up),
        running(folder / "prometheus.log", *prometheus),
    ):
        async with httpx.AsyncClient(timeout=60) as client:
            door, api = f"http://127.0.0.1:{base}", f"http://127.0.0.1:{port}/api/v1"
            await until_ready(client, door)
            await converse(client, door)
            await asyncio.to_thread(take_snapshots, folder / "up.log")
            missing: dict[str, str] = {}
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                await converse(client, door)
                missing = await unanswered(client, api)
                if not missing:
                    break
            firing = await ask(client, api, 'ALERTS{alertstate="firing"}')
            rules = (await client.get(f"{api}/rules")).json()["data"]["groups"]

    assert missing == {}
    assert firing == []
    assert {rule["name"] for group in rules for rule in group["rules"]} == set(alarms())
    assert {rule["health"] for group in rules for rule in group["rules"]} == {"ok"}


async def until_ready(client: httpx.AsyncClient, door: str) -> None:
    async with asyncio.timeout(120):
        while True:
            with contextlib.suppress(httpx.TransportError, KeyError):
                ready = (await client.get(f"{door}/v1/status")).json()["ready_replicas"]
                if {bucket: len(names) for bucket, names in ready.items()} == {
                    "chat": 2,
                    "code": 2,
                }:
                    return
            await asyncio.sleep(0.2)


async def converse(client: httpx.AsyncClient, door: str) -> None:
    for number in range(8):
        text = f"Agent {number % 3} of a bakery with many breads. " * 40
        body: dict[str, Any] = {
            "model": "mock",
            "max_tokens": 4,
            "messages": [{"role": "user", "content": text}],
        }
        await client.post(f"{door}/v1/chat/completions", json=body)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        await client.post(f"{door}/v1/chat/completions", json=body | options)


async def unanswered(client: httpx.AsyncClient, api: str) -> dict[str, str]:
    """Return the dashboard's expressions without an answer, or whose answer is an error."""
    found: dict[str, str] = {}
    for expression in dashboard_expressions():
        if any(name in expression for name in QUIET):
            continue
        # As Grafana fills them in for all buckets and a scrape interval of 1 s.
        asked = expression.replace("$__rate_interval", "10s").replace("$bucket", ".*")
        if not await ask(client, api, asked):
            found[expression] = "no data"
    return found


async def ask(client: httpx.AsyncClient, api: str, expression: str) -> list[Any]:
    answer = await client.get(f"{api}/query", params={"query": expression})
    reported = json.loads(answer.content)
    assert reported["status"] == "success", (expression, reported)
    values: list[Any] = reported["data"]["result"]
    return [one for one in values if one["value"][1] != "NaN"]
