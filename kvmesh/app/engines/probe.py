"""What an engine says of itself over HTTP: kind, models, blocks, event and load endpoints."""

from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from kvmesh.app.engines.load import LOADS, METRICS, read_gauges
from kvmesh.core.engines.diagnosis import SourceSeen, check_ports
from kvmesh.core.routing.disaggregation import Role
from kvmesh.errors import ConfigError, SlowError, TransportError
from kvmesh.transport.http.fetch import HTTP_OK, fetch, fetch_ok
from kvmesh.transport.http.upstream.client import UpstreamPool

DEFAULT_BOOTSTRAP_PORT = 8998
"""Where SGLang's prefill workers listen for decode workers unless told otherwise."""


class EventEndpoint(msgspec.Struct, frozen=True):
    """One rank's event publisher. `replay` is "" when it has none."""

    rank: int
    endpoint: str
    replay: str = ""
    topic: str = ""


class _Model(msgspec.Struct):
    id: str
    parent: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = []


class _Source(msgspec.Struct):
    endpoint: str = ""
    replay_endpoint: str | None = None
    topic: str | None = None
    enable_kv_cache_events: bool = True


class _SglangEvents(msgspec.Struct):
    endpoint_port_base: int
    topic: str | None = None
    dp_size: int = 1
    replay_endpoint_port_base: int | None = None
    load_endpoint_port_base: int | None = None


class _ServerInfo(msgspec.Struct):
    page_size: int | None = None
    disaggregation_mode: str | None = None
    disaggregation_bootstrap_port: int | None = None
    kv_events: _SglangEvents | None = None


class EngineFacts(msgspec.Struct, frozen=True):
    """What was learned; `block_size` 0 and empty lists mean "it did not say".

    `ranks` are the data-parallel ranks whose figures /metrics shows. `health_path` is what to ask
    often: SGLang's /health makes the engine generate a token, for a second and more. It tells its
    load on `load_path`, and of rank r on the stream `load_streams[r]`, if there are any.
    """

    models: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    role: Role = "both"
    bootstrap_port: int = 0
    block_size: int = 0
    ranks: int = 1
    health_path: str = "/health"
    endpoints: tuple[EventEndpoint, ...] = ()
    load_path: str = METRICS
    load_streams: tuple[str, ...] = ()


def reachable(endpoint: str, host: str) -> str:
    """Return a bind endpoint (`tcp://*:5557`) as a client of `host` must name it."""
    for wildcard in ("*", "0.0.0.0", "[::]"):  # noqa: S104 - recognised, not bound
        endpoint = endpoint.replace(f"//{wildcard}:", f"//{host}:")
    return endpoint


def given_endpoints(
    endpoint: str, replay: str, ranks: int, *, topic: str = ""
) -> tuple[EventEndpoint, ...]:
    """Return every rank's publisher from rank 0's: rank r adds r to both ports, as engines do.

    Raises `ConfigError` when there is no port to add to.
    """
    return tuple(
        EventEndpoint(rank, _behind(endpoint, rank), _behind(replay, rank), topic)
        for rank in range(ranks)
    )


def refuse_collisions(endpoints: Sequence[EventEndpoint]) -> None:
    """Raise `ConfigError` when a rank's replay port is another's event port."""
    sources = [SourceSeen(one.rank, one.endpoint, one.replay) for one in endpoints]
    for finding in check_ports(sources):
        raise ConfigError(f"{finding.text}: {finding.remedy}")


def _behind(endpoint: str, rank: int) -> str:
    """Return `endpoint` with `rank` added to its port."""
    if not rank or not endpoint:
        return endpoint
    head, _, port = endpoint.rpartition(":")
    if not port.isdigit():
        raise ConfigError(f"KV event endpoint {endpoint!r} has no port to add the rank {rank} to")
    return f"{head}:{int(port) + rank}"


class Served(msgspec.Struct, frozen=True):
    """The models an engine serves; `adapters` are those of them that are LoRA adapters."""

    models: tuple[str, ...]
    adapters: tuple[str, ...] = ()


async def read_models(pool: UpstreamPool, url: str) -> Served | None:
    """Return the served models; None when the engine does not answer."""
    try:
        return await ask_models(pool, url)
    except SlowError:
        return None


async def ask_models(pool: UpstreamPool, url: str) -> Served | None:
    """Do as `read_models`. Raises `SlowError` for an engine that answers too late."""
    try:
        status, body = await fetch(pool, url, "/v1/models")
    except SlowError:
        raise
    except TransportError:
        return None
    if status != HTTP_OK:
        return None
    try:
        models = msgspec.json.decode(body, type=_Models).data
    except msgspec.MsgspecError:
        return None
    return Served(
        tuple(model.id for model in models), tuple(model.id for model in models if model.parent)
    )


async def read_facts(pool: UpstreamPool, url: str) -> EngineFacts | None:
    """Return what the engine at `url` says of itself; None when it does not answer."""
    served = await read_models(pool, url)
    if served is None:
        return None
    host = urlsplit(url).hostname or "127.0.0.1"
    endpoints = await _vllm_endpoints(pool, url, host)
    block_size, health, load_path = 0, "/health", METRICS
    load_streams: tuple[str, ...] = ()
    role: Role = "both"
    bootstrap_port = 0
    if not endpoints:
        info = await _read_server_info(pool, url)
        if info is not None:
            endpoints, block_size = _sglang_endpoints(info, host), info.page_size or 0
            load_streams = _sglang_load_streams(info, host)
            role, bootstrap_port = _sglang_role(info)
            # /ready exists from SGLang 0.5.20 on, /v1/loads from 0.5.8 on.
            ready = await fetch_ok(pool, url, "/ready") is not None
            health = "/ready" if ready else "/v1/models"
            load_path = LOADS if await fetch_ok(pool, url, LOADS) is not None else METRICS
    gauges = await read_gauges(pool, url)
    return EngineFacts(
        models=served.models,
        adapters=served.adapters,
        role=role,
        bootstrap_port=bootstrap_port,
        block_size=block_size or max((one.block_size for one in gauges.values()), default=0),
        ranks=max(len(gauges), 1),
        health_path=health,
        endpoints=endpoints,
        load_path=load_path,
        load_streams=load_streams,
    )


async def _vllm_endpoints(pool: UpstreamPool, url: str, host: str) -> tuple[EventEndpoint, ...]:
    """Return the publishers vLLM >= 0.31 lists, one per rank."""
    body = await fetch_ok(pool, url, "/kv_event_sources")
    if body is None:
        return ()
    try:
        sources = msgspec.json.decode(body, type=dict[str, _Source])
    except msgspec.MsgspecError:
        return ()
    return tuple(
        EventEndpoint(
            rank=int(rank),
            endpoint=reachable(source.endpoint, host),
            replay=reachable(source.replay_endpoint or "", host),
            topic=source.topic or "",
        )
        for rank, source in sorted(sources.items())
        if rank.isdigit() and source.enable_kv_cache_events and source.endpoint
    )


async def _read_server_info(pool: UpstreamPool, url: str) -> _ServerInfo | None:
    """Return what SGLang says of itself, None when it is something else."""
    body = await fetch_ok(pool, url, "/server_info")
    if body is None:
        return None
    try:
        return msgspec.json.decode(body, type=_ServerInfo)
    except msgspec.MsgspecError:
        return None


def _sglang_endpoints(info: _ServerInfo, host: str) -> tuple[EventEndpoint, ...]:
    """Return the publishers that SGLang >= 0.5.14 tells, one per rank."""
    events = info.kv_events
    if events is None:
        return ()
    base, replay = events.endpoint_port_base, events.replay_endpoint_port_base
    return tuple(
        EventEndpoint(
            rank=rank,
            endpoint=f"tcp://{host}:{base + rank}",
            replay="" if replay is None else f"tcp://{host}:{replay + rank}",
            topic=events.topic or "",
        )
        for rank in range(events.dp_size)
    )


def _sglang_load_streams(info: _ServerInfo, host: str) -> tuple[str, ...]:
    """Return where SGLang >= 0.5.20 publishes its load, if asked to, one per rank."""
    events = info.kv_events
    if events is None or events.load_endpoint_port_base is None:
        return ()
    base = events.load_endpoint_port_base
    return tuple(f"tcp://{host}:{base + rank}" for rank in range(events.dp_size))


def _sglang_role(info: _ServerInfo) -> tuple[Role, int]:
    """Return the role that SGLang was started in, and the port others meet it at."""
    port = info.disaggregation_bootstrap_port or DEFAULT_BOOTSTRAP_PORT
    match info.disaggregation_mode:
        case "prefill":
            return "prefill", port
        case "decode":
            return "decode", port
        case _:
            return "both", 0
