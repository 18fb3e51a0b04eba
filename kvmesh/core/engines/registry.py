"""The kinds of engines there are: a new one is a folder here, an import, a name and an entry."""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from kvmesh.core.engines.engine import Engine
from kvmesh.core.engines.fetch import Access, Fetch, read_access
from kvmesh.core.engines.handshake import Connector
from kvmesh.core.engines.load import Gauge
from kvmesh.core.engines.prompt_slots import recognise
from kvmesh.core.engines.sglang.engine import SGLANG
from kvmesh.core.engines.vllm.engine import VLLM

EngineKind = Literal["vllm", "sglang", "transformers"]
"""Names of kinds, and the name that the unknown kind goes by where a kind must be named."""

DEFAULT_KIND: Final = "vllm"
"""Whose way is followed where nothing tells the kind."""

UNKNOWN: Final = Engine(
    name="transformers",
    title="unknown engine",
    recognise=recognise,
    gauges={"llamacpp:n_decode_total": (Gauge("computed"),)},
)
"""An engine of no known kind: an OpenAI server, whose events, if any, are of the common dialect.
llama.cpp's server counts its steps on /metrics (`--metrics`).
"""

ENGINES: Final[Mapping[str, Engine]] = {one.name: one for one in (VLLM, SGLANG)}
"""The kinds by name, in the order in which an engine is asked whether it is one."""


def engine_of(kind: str) -> Engine:
    """Return the engine of that name, `UNKNOWN` for any other."""
    return ENGINES.get(kind, UNKNOWN)


def connectors() -> Mapping[str, Connector]:
    """Return every kind's ways of sharing a request between prefill and decode, by name."""
    return {way.name: way for engine in ENGINES.values() for way in engine.connectors}


def connector_of(kind: str, bootstrap_port: int) -> Connector:
    """Return how a prefill worker that names no connector shares a request with decode workers.

    One that has a `bootstrap_port` is met there, any other is asked first. A kind that has no such
    way does it as the first kind that has.
    """
    met = bootstrap_port > 0
    ways = (way for one in (engine_of(kind), *ENGINES.values()) for way in one.connectors)
    return next(way for way in ways if way.beside == met)


def fetch_of(way: str) -> Fetch | None:
    """Return the way of that name in which some kind of engine fetches; None when there is none."""
    found = (one.fetches.get(way) for one in ENGINES.values())
    return next((fetch for fetch in found if fetch is not None), None)


def access_of(labels: Iterable[str]) -> Access | None:
    """Return how a worker with these labels fetches from others; None when it does not, or in a way
    that no kind of engine has.
    """
    access = read_access(labels)
    return access if access is not None and fetch_of(access.way) is not None else None


def needs_naming(kind: str) -> bool:
    """Return whether routers must know that a worker is of that kind to send requests its way.

    They need not where it is reached as any other is and its cache counts a prompt from when it is
    scheduled, as the first kind's does. Then heartbeats leave the kind out, so that
    routers of earlier versions read them all the same.
    """
    engine = engine_of(kind)
    if engine.caches_late or engine.rank_headers is not UNKNOWN.rank_headers:
        return True
    usual = engine.connectors[:1]
    return any(way is not connector_of("", int(way.beside)) for way in usual)
