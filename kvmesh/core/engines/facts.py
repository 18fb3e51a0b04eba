"""What an engine says of itself, and how it is asked: by interviews that do no I/O."""

from collections.abc import Generator
from typing import Literal, TypeVar

import msgspec

from kvmesh.bounds import UNREADABLE, MaybeName

Role = Literal["both", "prefill", "decode"]

METRICS = "/metrics"

_T = TypeVar("_T")

Interview = Generator[str, bytes | None, _T]
"""Yields a path of the engine's HTTP server, is sent the body of a 200 answer or None, and so on.

Its return value is what was learned.
"""


class EventEndpoint(msgspec.Struct, frozen=True):
    """One rank's event publisher. `replay` is "" when it has none."""

    rank: int
    endpoint: str
    replay: str = ""
    topic: str = ""


class EngineFacts(msgspec.Struct, frozen=True):
    """What was learned; `block_size` 0 and empty texts and lists mean "it did not say".

    `kind` is the name of an `Engine`. `ranks` are the data-parallel ranks whose figures /metrics
    shows. `health_path` is what to ask often, `load_path` where it tells its load: on /metrics, or
    a page that its `Engine` reads. Of rank r it is told on the stream `load_streams[r]`, too, if
    there are any. `bootstrap_port` is where a prefill worker meets decode workers, 0 nowhere.
    `weights` is the version of its weights, told at `weights_path`.
    `prompt_slots` keep a prompt each, of `slot_tokens` at most; 0: it has none, or does not say.
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
    kind: str = ""
    weights_path: str = ""
    weights: str = ""
    prompt_slots: int = 0
    slot_tokens: int = 0


class _Weights(msgspec.Struct):
    weight_version: MaybeName | None = None


def weights_in(page: bytes | None) -> str:
    """Return the version of its weights that an engine's page tells, "" for none."""
    try:
        return msgspec.json.decode(page or b"", type=_Weights).weight_version or ""
    except UNREADABLE:
        return ""


class Identity(msgspec.Struct, frozen=True):
    """What `kvmesh doctor` wants to know. `lists_events`: it can list its publishers.

    `prefix_caching` None: it does not say.
    """

    version: str
    lists_events: bool = False
    prefix_caching: bool | None = None


def reachable(endpoint: str, host: str) -> str:
    """Return a bind endpoint (`tcp://*:5557`) as a client of `host` must name it."""
    for wildcard in ("*", "0.0.0.0", "[::]"):  # noqa: S104 - recognised, not bound
        endpoint = endpoint.replace(f"//{wildcard}:", f"//{host}:")
    return endpoint


def base_of(url: str) -> str:
    """Return the base URL of an engine's HTTP server, given with or without OpenAI's `/v1`."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")
