"""Workers that come and go: in a file, under a DNS name, in a Kubernetes service."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.app.mesh.discovery import (
    Discovery,
    DnsSource,
    KubernetesSource,
    Source,
    parse_source,
    worker_at,
)
from kvmesh.errors import ConfigError, TransportError
from tests.integration.support import live_router
from tests.integration.support.live_router import mockers
from tests.integration.support.waiting import seen

pytestmark = pytest.mark.integration


@pytest.fixture
async def engines() -> AsyncIterator[list[str]]:
    async with mockers(2) as made:
        yield [one.url for one in made]


async def workers_when(client: httpx.AsyncClient, good: Callable[[set[str]], bool]) -> set[str]:
    status = await seen(client, "/v1/status", lambda status: good(usable_in(status)))
    return usable_in(status)


def usable_in(status: Any) -> set[str]:
    return {one["worker"] for one in status["workers"] if one["usable"]}


async def test_a_file_is_followed_while_requests_go_on(engines: list[str], tmp_path: Path) -> None:
    file = tmp_path / "workers.txt"
    file.write_text(f"# the first\na={engines[0]}\n\n")
    discover = (f"file:{file}",)
    async with live_router.client_of(live_router.router([], discover=discover)) as client:
        await workers_when(client, lambda usable: usable == {"a"})
        file.write_text(f"a={engines[0]}\nb={engines[1]}  # and another\n")
        await workers_when(client, lambda usable: usable == {"a", "b"})
        file.write_text("b = nonsense")
        await asyncio.sleep(0)
        file.write_text(f"b={engines[1]}\n")
        await workers_when(client, lambda usable: usable == {"b"})
        body = {"model": "mock", "max_tokens": 1, "prompt": "hello"}
        answers = [await client.post("/v1/completions", json=body) for _ in range(3)]

    assert {one.headers["x-kvmesh-worker"] for one in answers} == {"b"}


class ApiServer:
    """What of a Kubernetes API server a list of endpoint slices needs."""

    def __init__(self) -> None:
        self.slices: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.status = 200

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                self.asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
                body = json.dumps({"items": self.slices}).encode()
                head = f"HTTP/1.1 {self.status} X\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


def endpoint(address: str, name: str = "", **conditions: bool) -> dict[str, Any]:
    return {
        "addresses": [address],
        "conditions": conditions,
        "targetRef": {"kind": "Pod", "name": name} if name else None,
    }


@pytest.fixture
async def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[ApiServer]:
    (tmp_path / "token").write_text("secret\n")
    made = ApiServer()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", f"http://127.0.0.1:{port}")
    async with server:
        yield made


async def test_ready_endpoints_of_a_service_are_workers(api: ApiServer, tmp_path: Path) -> None:
    api.slices = [
        {
            "endpoints": [
                endpoint("10.0.0.1", "vllm-0", ready=True),
                endpoint("10.0.0.2", "vllm-1", ready=False),
                endpoint("10.0.0.3", "vllm-2", ready=True, terminating=True),
                endpoint("10.0.0.4"),
            ],
            "ports": [{"name": "zmq", "port": 5557}, {"name": "http", "port": 8000}],
        },
        {"endpoints": None, "ports": None},
    ]

    by_name = await KubernetesSource("llm", "vllm", "http", tmp_path).find()
    by_number = await KubernetesSource("llm", "vllm", "9000", tmp_path).find()
    first = await KubernetesSource("llm", "vllm", "", tmp_path).find()

    assert by_name == ["http://10.0.0.4:8000", "vllm-0=http://10.0.0.1:8000"]
    assert by_number[1] == "vllm-0=http://10.0.0.1:9000"
    assert first[0].endswith(":5557")
    assert (
        "namespaces/llm/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dvllm"
        in (api.asked[0])
    )
    assert "authorization: Bearer secret" in api.asked[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"endpoints": [endpoint("vllm.example.org")], "ports": [{"port": 8000}]},
        {"endpoints": [endpoint("10.0.0.1")], "ports": [{"port": 10**25}]},
        {"endpoints": [endpoint("10.0.0.1")], "ports": [{"port": -1}]},
        {"endpoints": [endpoint("9" * 5000)], "ports": [{"port": 8000}]},
    ],
)
async def test_a_slice_that_cannot_be_is_an_error(
    api: ApiServer, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    api.slices = [wrong]

    with pytest.raises(TransportError, match="kubernetes://llm/vllm"):
        await KubernetesSource("llm", "vllm", "", tmp_path).find()


class Many(Source):
    """A place that lists whatever it is told to."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def find(self) -> list[str]:
        return list(self.texts)


async def test_of_too_many_workers_those_known_stay_and_so_many_others_come() -> None:
    source = Many()
    discovery = Discovery([source], [], most=64)
    source.texts = ["old=http://10.9.9.9:8000"]
    before = await discovery.check()

    source.texts += [f"http://10.{n >> 16}.{n >> 8 & 255}.{n & 255}:8000" for n in range(200_000)]
    found = await discovery.check()
    again = await discovery.check()

    assert [one.worker for one in before] == ["old"]
    assert len(found) == 64
    assert "old" in {one.worker for one in found}
    assert again == found


async def test_a_service_that_cannot_be_listed_is_an_error(api: ApiServer, tmp_path: Path) -> None:
    api.status = 403
    with pytest.raises(TransportError, match="403"):
        await KubernetesSource("llm", "vllm", "", tmp_path).find()
    with pytest.raises(ConfigError, match="inside a cluster"):
        await KubernetesSource("llm", "vllm", "", tmp_path / "nowhere").find()


async def test_a_name_is_resolved_to_workers() -> None:
    found = await DnsSource("localhost", 8000).find()

    assert "http://127.0.0.1:8000" in found
    with pytest.raises(TransportError, match="no-such-host"):
        await DnsSource("no-such-host.invalid", 8000).find()


class Told:
    """A source that says what a test told it."""

    def __init__(self, *workers: str) -> None:
        self.workers = list(workers)
        self.error: Exception | None = None

    async def find(self) -> list[str]:
        if self.error is not None:
            raise self.error
        return self.workers


async def names(discovery: Discovery) -> list[str]:
    return [one.worker for one in await discovery.check()]


async def test_a_source_that_fails_keeps_what_it_said() -> None:
    flaky, steady = Told("a=http://a:1"), Told("b=http://b:1")
    discovery = Discovery([flaky, steady], ["c=http://c:1"])
    assert await names(discovery) == ["c", "a", "b"]

    flaky.error = TransportError("away")
    steady.workers = []

    assert await names(discovery) == ["c", "a"]


async def test_sources_may_name_the_same_worker_but_not_another_by_its_name() -> None:
    discovery = Discovery([Told("a=http://a:1"), Told("a=http://a:1")], [])
    assert await names(discovery) == ["a"]

    disagreeing = Discovery([Told("a=http://a:1"), Told("a=http://b:1")], [])
    assert await names(disagreeing) == []


@pytest.mark.parametrize(
    "text", ["workers.txt", "dns://host", "dns://host:port", "kubernetes://only", "consul://x"]
)
def test_an_unknown_source_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write file:PATH, dns://HOST:PORT, kubernetes://"):
        parse_source(text)


def test_sources_are_told_apart() -> None:
    kinds = ("file:x", "dns://h:1", "kubernetes://ns/svc", "kubernetes://ns/svc:http")
    made: list[Source] = [parse_source(text) for text in kinds]

    assert [type(one).__name__ for one in made] == [
        "FileSource", "DnsSource", "KubernetesSource", "KubernetesSource",
    ]  # fmt: skip
    assert worker_at("::1", 8000) == "http://[::1]:8000"
