"""The compose file for real, for `make chaos`: two dozen containers, restarts, a killed server."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
import yaml

from tests.integration.support.compose_project import COMPOSE, Project
from tests.integration.support.live_router import free_port

pytestmark = [
    pytest.mark.docker,
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.timeout(600),
]

WITHOUT_IMAGES = {"grafana", "nats-exporter-0", "nats-exporter-1", "nats-exporter-2"}
CLIENTS = 4
TARGETS = 14
CHECKED = 14
"""Routers, meta-routers, engines and sidecars; NATS, HAProxy and Prometheus have no check."""
WITHOUT_TARGETS = {"nats"}


class Mesh(Project):
    """The whole mesh of compose.yaml, at ports of its own."""

    def __init__(self) -> None:
        port, prometheus_port = free_port(), free_port()
        ports = {"KVMESH_PORT": str(port), "PROMETHEUS_PORT": str(prometheus_port)}
        super().__init__("compose.yaml", ports)
        self.url = f"http://127.0.0.1:{port}"
        self.prometheus = f"http://127.0.0.1:{prometheus_port}/api/v1"


@pytest.fixture
def project() -> Iterator[Mesh]:
    project = Mesh()
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    try:
        project.run(COMPOSE / "up.sh", *sorted(set(services) - WITHOUT_IMAGES))
        yield project
    finally:
        project.compose("down", "--volumes", "--timeout", "5")


async def test_no_request_is_lost_when_routers_and_meta_routers_restart_and_a_server_dies(
    project: Mesh,
) -> None:
    answers: Counter[int] = Counter()
    overlaps: list[int] = []
    done = asyncio.Event()
    async with httpx.AsyncClient(timeout=60) as client:
        await until_ready(client, project.url)

        async def converse(name: int) -> None:
            number = 0
            while not done.is_set():
                text = f"Client {name} tells a long story. " * 60 + str(number)
                body = {"model": "mock", "max_tokens": 4, "messages": [turn(text)]}
                headers = {"x-kvmesh-bucket": "chat"}
                url = f"{project.url}/v1/chat/completions"
                answer = await client.post(url, json=body, headers=headers)
                answers[answer.status_code] += 1
                overlaps.append(int(answer.headers.get("x-kvmesh-overlap-blocks", 0)))
                number += 1

        clients = [asyncio.create_task(converse(name)) for name in range(CLIENTS)]
        await project.in_background("restart", "router-chat-0")
        for name in ("meta-router-0", "meta-router-1"):
            await project.in_background("restart", name)
            await healthy(project, name)
        await project.in_background("kill", "nats-0")
        await until_ready(client, project.url)
        await project.in_background("start", "nats-0")
        await until_ready(client, project.url)
        done.set()
        await asyncio.gather(*clients)

    assert set(answers) == {200}, answers
    assert sum(overlap > 100 for overlap in overlaps) > len(overlaps) / 2
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(agree, project):  # noqa: ASYNC110  nothing tells
            await asyncio.sleep(1)
    await all_is_read(project)
    await all_are_healthy(project)
    assert "permissions violation" not in project.compose("logs", "--no-color").lower()


def turn(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def agree(project: Mesh) -> bool:
    first, second = (project.ask(f"router-chat-{n}", "/v1/status")["mesh"] for n in (0, 1))
    return bool(
        first["applied_sequence"] == second["applied_sequence"] > 0
        and first["digest"] == second["digest"]
    )


async def all_is_read(project: Mesh) -> None:
    """Wait until Prometheus reads every process and has evaluated every alarm."""
    state: object = None
    async with httpx.AsyncClient(timeout=60) as client:
        for _ in range(60):
            reported = (await client.get(f"{project.prometheus}/targets")).json()["data"]
            groups = (await client.get(f"{project.prometheus}/rules")).json()["data"]["groups"]
            targets = Counter(
                one["health"]
                for one in reported["activeTargets"]
                if one["labels"]["job"] not in WITHOUT_TARGETS
            )
            alarms = Counter(rule["health"] for group in groups for rule in group["rules"])
            state = (targets, alarms)
            if (set(targets), set(alarms)) == ({"up"}, {"ok"}):
                assert targets["up"] == TARGETS
                return
            await asyncio.sleep(1)
    pytest.fail(f"Prometheus reads not all: {state}")


async def healthy(project: Mesh, service: str) -> None:
    """Wait until Docker calls a service healthy, as who restarts one after the other does."""
    (one,) = project.compose("ps", "-q", service).split()
    state = ["docker", "inspect", "--format", "{{.State.Health.Status}}", one]
    async with asyncio.timeout(120):
        while (await asyncio.to_thread(project.run, *state)).strip() != "healthy":  # noqa: ASYNC110  nothing tells
            await asyncio.sleep(0.5)


async def all_are_healthy(project: Mesh) -> None:
    """Wait until every container with a health check passes it."""
    ids = project.compose("ps", "-q").split()
    form = "{{.Name}} {{if .State.Health}}{{.State.Health.Status}}{{else}}none{{end}}"
    states: dict[str, str] = {}
    for _ in range(90):
        lines = project.run("docker", "inspect", "--format", form, *ids).splitlines()
        states = dict(line.split() for line in lines)
        if set(states.values()) == {"healthy", "none"}:
            checked = [name for name, state in states.items() if state == "healthy"]
            assert len(checked) == CHECKED, states
            return
        await asyncio.sleep(1)
    pytest.fail(f"not healthy: {states}")


async def until_ready(client: httpx.AsyncClient, url: str) -> None:
    """Wait until the front door has a replica of each bucket."""
    async with asyncio.timeout(120):
        while True:
            with contextlib.suppress(httpx.TransportError, KeyError):
                status = (await client.get(f"{url}/v1/status")).json()
                ready = status["ready_replicas"]
                if {bucket for bucket in ready if ready[bucket]} == {"chat", "code"}:
                    return
            await asyncio.sleep(0.2)
