"""What a cluster's API server and a gateway's headers say, under any bytes."""

import contextlib
import ipaddress
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import urlsplit

import msgspec

from kvmesh.app.members.worker_option import parse_workers
from kvmesh.app.picker.exchange import PickExchange, Way
from kvmesh.app.picker.gateway_wishes import GatewayWishes
from kvmesh.app.picker.kube_api import Query, read_event
from kvmesh.app.picker.kube_objects import PODS, InferenceObjective, InferencePool, Pod, read
from kvmesh.app.picker.pool_endpoints import find_endpoints
from kvmesh.app.prompts.request_wishes import WishOptions, WishReader
from kvmesh.core.routing.model_policy import ModelPolicies
from kvmesh.errors import ApiServerError, CodecError, RequestError
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.wire.headers import Headers
from tests.integration.kube import api_server

PRIORITIES: Final = {"batch": -1}
WISHES: Final = WishReader(WishOptions(tenant_header="x-kvmesh-tenant"), ModelPolicies(()))
POOL: Final = read(InferencePool, msgspec.Raw(msgspec.json.encode(api_server.pool())))


class NoGateway:
    """A stream that nobody asks on."""

    def refuse(self, status: int, headers: Headers, body: bytes) -> None:
        raise AssertionError((status, headers, body))

    def go(self, way: Way) -> None:
        raise AssertionError(way)

    def drop(self) -> None:
        """Do nothing."""


def cluster(data: bytes) -> None:
    """Read a line of a watch, and each kind of object; what is read names engines at addresses."""
    with contextlib.suppress(CodecError, ApiServerError):
        event = read_event(data, Query(PODS, "llm"))
        _objects(event.data)
    _objects(msgspec.Raw(data))


def _objects(data: msgspec.Raw) -> None:
    with contextlib.suppress(CodecError):
        assert abs(read(InferenceObjective, data).spec.priority or 0) <= 1 << 31
    pool = POOL
    with contextlib.suppress(CodecError):
        pool = read(InferencePool, data)
    pods = [read(Pod, msgspec.Raw(msgspec.json.encode(api_server.pod("vllm", "10.0.0.1"))))]
    with contextlib.suppress(CodecError):
        pods.append(read(Pod, data))
    found = find_endpoints(pool, pods)
    for worker in parse_workers([one.as_worker() for one in found.endpoints], empty=True):
        ipaddress.ip_address(urlsplit(worker.url).hostname or "")


def gateway(data: bytes) -> None:
    """Read headers, `name: value` lines, and a body behind an empty one."""
    head, _, body = data.partition(b"\n\n")
    lines = [line.partition(b":") for line in head.split(b"\n")]
    sent = [(name.strip().lower(), value.strip()) for name, _, value in lines]
    request = Request("POST", b"/v1/completions", sent, body)
    exchange = PickExchange(request, NoGateway(), b"1", lambda *_: None)
    with contextlib.suppress(RequestError):
        GatewayWishes("x-kvmesh-tenant", PRIORITIES.get)(exchange)
        WISHES.read(exchange.request)


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {"cluster": cluster, "gateway": gateway}

SEEDS: Final[dict[str, tuple[bytes, ...]]] = {
    "cluster": (
        *(
            msgspec.json.encode(one)
            for one in (
                api_server.pod("vllm-0", "fd00::1"),
                api_server.pool("chat", 8000, 8001),
                api_server.objective("batch", -1),
                {"type": "ADDED", "object": api_server.pod("vllm-1", "10.0.0.1")},
                {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "12"}}},
                {"type": "ERROR", "object": {"code": 410, "message": "too old"}},
            )
        ),
    ),
    "gateway": (
        b"x-llm-d-inference-objective: batch\nx-gateway-inference-fairness-id: a",
        b"x-slo-ttft-ms: 12.5\nx-llm-d-slo-tpot-ms: 1e3\nx-kvmesh-priority: 3",
        b'x-gateway-model-name-rewrite: b\n\n{"model":"a","prompt":"hi"}',
    ),
}


def seeds(target: str) -> Iterator[bytes]:
    """Yield well-formed inputs."""
    yield from SEEDS[target]
