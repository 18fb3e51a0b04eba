"""What is asked of a vLLM, and what its answers mean."""

import re
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from kvmesh.bounds import UNREADABLE, MaybeName, Text, whole_number
from kvmesh.core.engines.facts import (
    METRICS,
    EngineFacts,
    EventEndpoint,
    Identity,
    Interview,
    reachable,
)
from kvmesh.core.engines.load import MAX_RANKS, Gauge

CACHE_INFO: Final = "vllm:cache_config_info"

GAUGES: Final = {
    "vllm:num_requests_running": (Gauge("running"),),
    "vllm:num_requests_waiting": (Gauge("waiting"),),
    "vllm:kv_cache_usage_perc": (Gauge("usage"),),
    "vllm:gpu_cache_usage_perc": (Gauge("usage"),),
    "vllm:prefix_cache_queries_total": (Gauge("queried"),),
    "vllm:prefix_cache_hits_total": (Gauge("hit"),),
    "vllm:generation_tokens_total": (Gauge("computed"),),
    "vllm:prompt_tokens_total": (Gauge("computed"),),
    "vllm:lora_requests_info": (
        Gauge("adapter_slots", label="max_lora"),
        Gauge("adapters", label="running_lora_adapters"),
        Gauge("adapters", label="waiting_lora_adapters"),
    ),
    CACHE_INFO: (
        Gauge("block_size", label="block_size"),
        Gauge("total_blocks", label="num_gpu_blocks"),
    ),
}

SOURCES: Final = "/kv_event_sources"
"""Lists the event publishers, one per rank, from vLLM 0.31 on."""

_CACHING: Final = re.compile(r'[{,] *enable_prefix_caching="([^"]*)"')


class _Source(msgspec.Struct):
    endpoint: Text = ""
    replay_endpoint: Text | None = None
    topic: MaybeName | None = None
    enable_kv_cache_events: bool = True


class _Version(msgspec.Struct):
    version: MaybeName = ""


_Sources = Annotated[dict[str, _Source], Meta(max_length=MAX_RANKS)]


def recognise(host: str) -> Interview[EngineFacts | None]:
    """Ask for the event publishers; an engine that lists none is served as of an unknown kind."""
    body = yield SOURCES
    if body is None:
        return None
    endpoints = _endpoints(body, host)
    return EngineFacts(kind="vllm", endpoints=endpoints) if endpoints else None


def identify() -> Interview[Identity | None]:
    """Ask for version, publishers and prefix caching."""
    body = yield "/version"
    try:
        version = msgspec.json.decode(body or b"", type=_Version).version
    except UNREADABLE:
        return None
    if not version:
        return None
    lists = yield SOURCES
    page = yield METRICS
    return Identity(version, lists is not None, _caching(page or b""))


def _endpoints(body: bytes, host: str) -> tuple[EventEndpoint, ...]:
    """Return the publishers in a list of them, one per rank."""
    try:
        sources = msgspec.json.decode(body, type=_Sources)
    except UNREADABLE:
        return ()
    return tuple(
        EventEndpoint(
            rank=rank,
            endpoint=reachable(source.endpoint, host),
            replay=reachable(source.replay_endpoint or "", host),
            topic=source.topic or "",
        )
        for name, source in sorted(sources.items())
        if (rank := whole_number(name, 0, MAX_RANKS - 1)) is not None
        and source.enable_kv_cache_events
        and source.endpoint
    )


def _caching(page: bytes) -> bool | None:
    """Return what /metrics say of prefix caching."""
    lines = page.decode(errors="replace").splitlines()
    matches = (_CACHING.search(line) for line in lines if line.startswith(CACHE_INFO))
    words = {found[1] for found in matches if found}
    return None if not words else words == {"True"}
