"""Where the processes of a release connect to, by their own settings and the cluster's Services."""

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from kvmesh.settings.roles import MetaRouterSettings, RouterSettings
from tests.integration.chart.cluster import AROUND, members
from tests.integration.chart.command_lines import FIELDS, parse_line, read_line
from tests.integration.chart.network import End, Pod
from tests.integration.chart.rendering import Manifest, containers, is_ours, named, pods

Wish = tuple[Pod, End, int, str]
"""(Who, towards whom, port, the setting's value or the probe's reason.)"""

HOSTS: Final = {
    "10.20.0.1": "gpu-machine",
    "10.20.0.2": "gpu-machine",
    "nats-1.example.org": "external-nats",
    "nats-2.example.org": "external-nats",
    "nats-3.example.org": "external-nats",
    "collector.observability": "collector",
    "vllm": "vllm",
    "vllm-0.vllm-pods": "vllm",
    "vllm-1.vllm-pods": "vllm",
    "vllm-2.vllm-pods": "vllm",
}
"""Who of those around the release the hosts in the examples are."""
OWN_POD: Final = {"127.0.0.1", FIELDS["status.podIP"]}
API_SERVER: Final = 6443
PORTS: Final = {"nats": 4222, "tls": 4222, "http": 80, "https": 443}


def configured(manifests: list[Manifest]) -> Iterator[Wish]:
    """Yield each connection that the release's own processes will open."""
    own = members(manifests)
    for source, (_, template) in zip(own, pods(manifests), strict=True):
        for container in filter(is_ours, containers(template)):
            line = read_line(container, manifests)
            settings = parse_line(line)
            traces = line.variables.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
            for url in (*urls(settings), *filter(None, [traces] * sends_traces(settings))):
                for target, port in ends(url, own, manifests):
                    yield source, target, port, url
            yield from of_pool(settings, source, own, manifests)
    yield from of_siblings(own)


def sends_traces(settings: Any) -> bool:
    """Return whether a process with these settings sends spans."""
    return isinstance(getattr(settings, "router", settings), RouterSettings | MetaRouterSettings)


def urls(settings: Any) -> Iterator[str]:
    """Yield the URLs in a process' settings, but for those of its own pod."""
    role: Any = settings
    if isinstance(settings, dict):
        role = settings.get("options", settings)
    role = getattr(role, "router", role)
    found: list[str] = role.nats.nats_url.split(",") if hasattr(role, "nats") else []
    if not hasattr(role, "engine_url"):
        for worker in getattr(role, "worker", ()):
            url, *options = worker.partition("=")[2].split(",")
            found += [url, *(one.partition("=")[2] for one in options if "=tcp://" in one)]
        found += getattr(role, "discover", ())
    else:
        found += [role.engine_url, role.kv_events_endpoint, role.kv_replay_endpoint]
    yield from (url for url in found if url and urlsplit(url).hostname not in OWN_POD)


def ends(url: str, own: list[Pod], manifests: list[Manifest]) -> Iterator[tuple[End, int]]:
    """Yield who answers at a URL: the pods of a Service of the release, or who is around."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or PORTS.get(parts.scheme, 0)
    if parts.scheme == "kubernetes":
        yield next(one for one in AROUND if one.name == "api-server"), API_SERVER
        host, _, number = parts.path.removeprefix("/").partition(":")
        port = int(number)
    if host in HOSTS:
        yield from ((one, port) for one in AROUND if one.name == HOSTS[host])
        return
    service = named(manifests, "Service")[host.rpartition(".")[2]]
    selector = service["spec"]["selector"].items()
    found = [one for one in own if selector <= one.labels.items()]
    assert found, f"{url}: nobody answers"
    yield from ((one, port) for one in found)


def of_pool(
    settings: Any, source: Pod, own: list[Pod], manifests: list[Manifest]
) -> Iterator[Wish]:
    """Yield what a picker reaches: the API server, and the pool's pods at its target ports."""
    name = getattr(getattr(settings, "router", None), "pool", None)
    if name is None:
        return
    yield source, next(one for one in AROUND if one.name == "api-server"), API_SERVER, "pool"
    pool = named(manifests, "InferencePool")[name.inference_pool.partition("/")[2]]["spec"]
    for one in own:
        if pool["selector"]["matchLabels"].items() <= one.labels.items():
            for port in pool["targetPorts"]:
                yield source, one, port["number"], "pool"


def of_siblings(own: list[Pod]) -> Iterator[Wish]:
    """Yield whom a mesh asks over HTTP: meta-routers their routers, routers and pickers of a bucket
    each other, and routers the engines of their bucket, whose heartbeats name their URLs.
    """
    mesh = [one for one in own if one.labels.get("kvmesh/nats-client") == "true"]
    routing = [one for one in mesh if one.name.startswith(("router-", "picker-"))]
    for one in routing:
        bucket = one.labels["kvmesh/bucket"]
        alike = [other for other in mesh if other.labels.get("kvmesh/bucket") == bucket]
        for other in alike:
            if other in routing or other.labels.get("kvmesh/engine") == "true":
                yield one, other, 8000, "a sibling, or an engine of its bucket"
    for one in (found for found in mesh if found.name == "meta-router"):
        for other in routing:
            if other.name.startswith("router-"):
                yield one, other, 8000, "a replica"
