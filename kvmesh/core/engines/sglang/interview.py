"""What is asked of an SGLang, and what its answers mean."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from kvmesh.bounds import UNREADABLE, MaybeName, Port, Tokens
from kvmesh.core.engines.facts import (
    METRICS,
    EngineFacts,
    EventEndpoint,
    Identity,
    Interview,
    Role,
    weights_in,
)
from kvmesh.core.engines.load import MAX_RANKS
from kvmesh.core.engines.sglang.load import LOADS

SERVER_INFO: Final = "/server_info"

DEFAULT_BOOTSTRAP_PORT: Final = 8998
"""Where prefill workers listen for decode workers unless told otherwise."""


class _Events(msgspec.Struct):
    endpoint_port_base: Port
    topic: MaybeName | None = None
    dp_size: Annotated[int, Meta(ge=1, le=MAX_RANKS)] = 1
    replay_endpoint_port_base: Port | None = None
    load_endpoint_port_base: Port | None = None


class _ServerInfo(msgspec.Struct):
    page_size: Tokens | None = None
    disaggregation_mode: MaybeName | None = None
    disaggregation_bootstrap_port: Port | None = None
    kv_events: _Events | None = None


class _Version(msgspec.Struct):
    version: MaybeName = ""
    kv_events: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    disable_radix_cache: bool | None = None


def recognise(host: str) -> Interview[EngineFacts | None]:
    """Ask for the server's arguments, and which of the newer paths it has.

    Its /health makes the engine generate a token, for a second and more: it is not asked often.
    /ready exists from SGLang 0.5.20 on, /v1/loads from 0.5.8 on.
    """
    body = yield SERVER_INFO
    try:
        info = msgspec.json.decode(body or b"", type=_ServerInfo)
    except UNREADABLE:
        return None
    ready = yield "/ready"
    loads = yield LOADS
    weights_path, weights = yield from _weights()
    role, port = _role(info)
    return EngineFacts(
        weights_path=weights_path,
        weights=weights,
        kind="sglang",
        role=role,
        bootstrap_port=port,
        block_size=info.page_size or 0,
        health_path="/v1/models" if ready is None else "/ready",
        endpoints=_endpoints(info, host),
        load_path=METRICS if loads is None else LOADS,
        load_streams=_load_streams(info, host),
    )


def _weights() -> Interview[tuple[str, str]]:
    """Return where the version of the weights is told, and which it is."""
    for path in ("/model_info", "/get_model_info"):
        if weights := weights_in((yield path)):
            return path, weights
    return "", ""


def identify() -> Interview[Identity | None]:
    """Ask for version, publishers and prefix caching, all on one page."""
    body = yield SERVER_INFO
    try:
        said = msgspec.json.decode(body or b"", type=_Version)
    except UNREADABLE:
        return None
    if not said.version:
        return None
    off = said.disable_radix_cache
    caching = None if off is None else not off
    return Identity(said.version, said.kv_events is not msgspec.UNSET, caching)


def _endpoints(info: _ServerInfo, host: str) -> tuple[EventEndpoint, ...]:
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


def _load_streams(info: _ServerInfo, host: str) -> tuple[str, ...]:
    """Return where SGLang >= 0.5.20 publishes its load, if asked to, one per rank."""
    events = info.kv_events
    if events is None or events.load_endpoint_port_base is None:
        return ()
    base = events.load_endpoint_port_base
    return tuple(f"tcp://{host}:{base + rank}" for rank in range(events.dp_size))


def _role(info: _ServerInfo) -> tuple[Role, int]:
    """Return the role that it was started in, and the port others meet it at."""
    port = info.disaggregation_bootstrap_port or DEFAULT_BOOTSTRAP_PORT
    match info.disaggregation_mode:
        case "prefill":
            return "prefill", port
        case "decode":
            return "decode", port
        case _:
            return "both", 0
