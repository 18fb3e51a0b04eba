"""What an engine says of itself over HTTP: kind, models, blocks, event and load endpoints."""

from collections.abc import Sequence
from typing import TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from kvmesh.app.members.engine_load import read_gauges
from kvmesh.bounds import MAX_NAMES, UNREADABLE, is_name
from kvmesh.core.engines.diagnosis import check_ports
from kvmesh.core.engines.facts import EngineFacts, EventEndpoint, Identity, Interview, weights_in
from kvmesh.core.engines.registry import ENGINES, UNKNOWN
from kvmesh.core.engines.seen import SourceSeen
from kvmesh.errors import ConfigError, SlowError, TransportError
from kvmesh.observe import get_logger
from kvmesh.transport.http.fetch import HTTP_OK, fetch, fetch_ok
from kvmesh.transport.http.upstream.client import UpstreamPool

_T = TypeVar("_T")


class _Model(msgspec.Struct):
    id: str
    parent: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = []

    def served(self) -> "Served":
        """Return what a heartbeat can carry of them: names, and not too many."""
        kept = [one for one in self.data if is_name(one.id)][:MAX_NAMES]
        if len(kept) < len(self.data):
            get_logger().warning(
                "engine names models that cannot be served", models=len(self.data), kept=len(kept)
            )
        return Served(tuple(one.id for one in kept), tuple(one.id for one in kept if one.parent))


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
    """Return the served models; None when the engine does not answer with them."""
    try:
        answer = await ask_models(pool, url)
    except SlowError:
        return None
    return answer if isinstance(answer, Served) else None


async def ask_models(pool: UpstreamPool, url: str) -> Served | int:
    """Return the served models; else the status of the answer, 0 where nothing answers.

    Raises `SlowError` for an engine that answers too late.
    """
    try:
        status, body = await fetch(pool, url, "/v1/models")
    except SlowError:
        raise
    except TransportError:
        return 0
    if status != HTTP_OK:
        return status
    try:
        return msgspec.json.decode(body, type=_Models).served()
    except UNREADABLE:
        return status


async def read_weights(pool: UpstreamPool, url: str, path: str) -> str:
    """Return the version of its weights that an engine tells at `path`, "" where it does not."""
    return weights_in(await fetch_ok(pool, url, path)) if path else ""


async def read_facts(pool: UpstreamPool, url: str) -> EngineFacts | None:
    """Return what the engine at `url` says of itself; None when it does not answer."""
    served = await read_models(pool, url)
    if served is None:
        return None
    host = urlsplit(url).hostname or "127.0.0.1"
    facts = await _recognise(pool, url, host)
    gauges = await read_gauges(pool, url)
    return msgspec.structs.replace(
        facts,
        models=served.models,
        adapters=served.adapters,
        block_size=facts.block_size or max((one.block_size for one in gauges.values()), default=0),
        ranks=max(len(gauges), 1),
    )


async def identify(pool: UpstreamPool, url: str) -> tuple[str, Identity] | None:
    """Return the engine's kind and what `kvmesh doctor` wants to know; None for an unknown kind."""
    for engine in ENGINES.values():
        found = await conduct(pool, url, engine.identify())
        if found is not None:
            return engine.name, found
    return None


async def conduct(pool: UpstreamPool, url: str, interview: Interview[_T]) -> _T:
    """Ask the engine at `url` what `interview` wants to know, return what it learned."""
    try:
        path = next(interview)
        while True:
            path = interview.send(await fetch_ok(pool, url, path))
    except StopIteration as end:
        return cast("_T", end.value)


async def _recognise(pool: UpstreamPool, url: str, host: str) -> EngineFacts:
    """Return what the first kind that knows the engine learns of it."""
    for engine in (*ENGINES.values(), UNKNOWN):
        found = await conduct(pool, url, engine.recognise(host))
        if found is not None:
            return found
    return EngineFacts()
