"""The kinds of engines there are: a new one is a folder here, an import, a name and an entry."""

from collections.abc import Mapping
from typing import Final, Literal

from kvmesh.core.engines.engine import Engine
from kvmesh.core.engines.handshake import Handshake, Rendezvous, Transfer
from kvmesh.core.engines.sglang.engine import SGLANG
from kvmesh.core.engines.vllm.engine import VLLM

EngineKind = Literal["vllm", "sglang", "transformers"]
"""Names of kinds, and the name that the unknown kind goes by where a kind must be named."""

DEFAULT_KIND: Final = "vllm"
"""Whose way is followed where nothing tells the kind."""

UNKNOWN: Final = Engine(name="transformers", title="unknown engine")
"""An engine of no known kind: an OpenAI server, whose events, if any, are of the common dialect."""

ENGINES: Final[Mapping[str, Engine]] = {one.name: one for one in (VLLM, SGLANG)}
"""The kinds by name, in the order in which an engine is asked whether it is one."""


def engine_of(kind: str) -> Engine:
    """Return the engine of that name, `UNKNOWN` for any other."""
    return ENGINES.get(kind, UNKNOWN)


def handshake_of(kind: str, bootstrap_port: int) -> Handshake:
    """Return how a prefill worker shares a request with decode workers.

    One that has a `bootstrap_port` is met there, any other is asked first. A kind that has no
    handshake of that sort does it as the first kind that has.
    """
    sort = Rendezvous if bootstrap_port else Transfer
    found = (one.handshake for one in (engine_of(kind), *ENGINES.values()))
    return next(handshake for handshake in found if isinstance(handshake, sort))


def needs_naming(kind: str) -> bool:
    """Return whether routers must know that a worker is of that kind to send requests its way.

    They need not where it is reached as any other is. Then heartbeats leave the kind out, so that
    routers of earlier versions read them all the same.
    """
    engine = engine_of(kind)
    if engine.rank_headers is not UNKNOWN.rank_headers:
        return True
    handshake = engine.handshake
    return handshake is not None and handshake is not handshake_of(
        "", 1 if isinstance(handshake, Rendezvous) else 0
    )
