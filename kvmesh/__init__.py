"""KV-cache-aware request routing for LLM engines.

The public face: `from kvmesh import KvRouter`, and whatever else `__all__` names; the rest is
internal and may move. A name is loaded when it is first asked for: `import kvmesh` takes 0.2 ms,
and the library needs neither NATS nor an HTTP client.
"""

TYPE_CHECKING = False
"""True for type checkers, as `typing.TYPE_CHECKING`, whose import would take 4 ms."""

if TYPE_CHECKING:
    from kvmesh.client import Answer, AsyncClient, AsyncStream, Client, Metrics, Route, Stream
    from kvmesh.embed import (
        BookingOptions,
        EngineAddress,
        Follower,
        FollowOptions,
        NatsLogin,
        RegisteredLlm,
        RegisterOptions,
        Reservation,
        follow,
        register_llm,
    )
    from kvmesh.errors import (
        CodecError,
        ConfigError,
        KvMeshError,
        NoWorkerError,
        RequestError,
        TransportError,
    )
    from kvmesh.library import (
        ENDS,
        ROOT,
        SERVED,
        UNKNOWN,
        ApproxKvIndexer,
        Attempt,
        BestMatch,
        Candidate,
        Cleared,
        EndpointMetrics,
        Event,
        Fleet,
        Formulas,
        KvIndexer,
        KvMetrics,
        KvMetricsAggregator,
        KvRouter,
        Listener,
        LoadReport,
        Matches,
        MeshView,
        Removed,
        RequestOptions,
        Reuse,
        RouterOptions,
        SessionOptions,
        Stored,
        Trust,
        WorkerInfo,
        WorkerLoad,
        cost_formula,
        failed_attempt,
        namespace_root,
        own_cost,
        pack_hashes,
        sequence_hashes,
        status_attempt,
    )

__all__ = [
    "ENDS",
    "ROOT",
    "SERVED",
    "UNKNOWN",
    "Answer",
    "ApproxKvIndexer",
    "AsyncClient",
    "AsyncStream",
    "Attempt",
    "BestMatch",
    "BookingOptions",
    "Candidate",
    "Cleared",
    "Client",
    "CodecError",
    "ConfigError",
    "EndpointMetrics",
    "EngineAddress",
    "Event",
    "Fleet",
    "FollowOptions",
    "Follower",
    "Formulas",
    "KvIndexer",
    "KvMeshError",
    "KvMetrics",
    "KvMetricsAggregator",
    "KvRouter",
    "Listener",
    "LoadReport",
    "Matches",
    "MeshView",
    "Metrics",
    "NatsLogin",
    "NoWorkerError",
    "RegisterOptions",
    "RegisteredLlm",
    "Removed",
    "RequestError",
    "RequestOptions",
    "Reservation",
    "Reuse",
    "Route",
    "RouterOptions",
    "SessionOptions",
    "Stored",
    "Stream",
    "TransportError",
    "Trust",
    "WorkerInfo",
    "WorkerLoad",
    "cost_formula",
    "failed_attempt",
    "follow",
    "namespace_root",
    "own_cost",
    "pack_hashes",
    "register_llm",
    "sequence_hashes",
    "status_attempt",
]

_OF_CLIENT = ("Answer", "AsyncClient", "AsyncStream", "Client", "Metrics", "Route", "Stream")

_OF_EMBED = (
    *("EngineAddress", "Follower", "FollowOptions", "NatsLogin", "RegisteredLlm"),
    *("RegisterOptions", "BookingOptions", "Reservation", "follow", "register_llm"),
)

if not TYPE_CHECKING:  # else every misspelt name would be typed as what this returns

    def __getattr__(name: str) -> object:
        """Load what has the public `name`, and keep it here."""
        if name not in __all__:
            raise AttributeError(f"module 'kvmesh' has no attribute {name!r}")
        if name in _OF_CLIENT:
            try:
                from kvmesh import client as home  # noqa: PLC0415 - needs httpx, which is optional
            except ModuleNotFoundError as error:
                raise ModuleNotFoundError(f"{error}: pip install 'kvmesh[client]'") from error
        elif name in _OF_EMBED:
            from kvmesh import embed as home  # noqa: PLC0415 - takes 0.4 s: NATS, HTTP, ZMQ
        elif name.endswith("Error"):
            from kvmesh import errors as home  # noqa: PLC0415 - quick, without the library
        else:
            from kvmesh import library as home  # noqa: PLC0415 - takes 50 ms
        value = globals()[name] = getattr(home, name)
        return value

    def __dir__() -> list[str]:
        """Return the public names and what a module has besides."""
        return sorted({*globals(), *__all__})
