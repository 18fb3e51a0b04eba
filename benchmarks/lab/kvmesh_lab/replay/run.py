"""One pass over a slice: every request sent, every outcome kept."""

from itertools import pairwise
from time import perf_counter
from typing import Final

from kvmesh.bounds import MAX_FIGURE, real_number
from kvmesh_lab.replay.client import ReplayClient, ReplayExchange
from kvmesh_lab.replay.load import send_closed_loop, send_open_loop
from kvmesh_lab.replay.plan import RequestFactory
from kvmesh_lab.replay.progress import RunProgress
from kvmesh_lab.report.outcome import UNKNOWN, RequestOutcome
from kvmesh_lab.traces.trace import TraceRequest, split_sessions

MS = 1000.0
WAIT_HEADER: Final = b"x-kvmesh-program-wait-ms"


class ReplayPass:
    """Sends a slice once. `outcomes` grows while it goes on, in the order requests end."""

    def __init__(
        self, client: ReplayClient, factory: RequestFactory, requests: tuple[TraceRequest, ...]
    ) -> None:
        self.outcomes: list[RequestOutcome] = []
        self.progress = RunProgress(len(requests))
        self._client = client
        self._factory = factory
        self._requests = requests
        self._start_s = perf_counter()

    async def run(self, concurrency: int | None) -> None:
        """Send everything: open loop, or closed with so many sessions at a time."""
        self._start_s = perf_counter()
        chains = split_sessions(self._requests)
        if concurrency is None:
            await send_open_loop(chains, self._send)
        else:
            await send_closed_loop(chains, concurrency, self._send)

    async def _send(self, request: TraceRequest, due_s: float) -> None:
        factory = self._factory
        self.progress.sent += 1
        exchange = await self._client.stream(
            factory.path, factory.headers(request), factory.body(request)
        )
        outcome = describe(request, exchange, self._start_s, due_s)
        self.outcomes.append(outcome)
        self.progress.take(outcome)


def describe(
    request: TraceRequest, exchange: ReplayExchange, start_s: float, due_s: float
) -> RequestOutcome:
    """Return what an exchange amounts to. Tokens are counted by chunks when usage is missing."""
    reader, headers = exchange.reader, exchange.headers
    times = reader.token_times
    return RequestOutcome(
        index=request.index,
        session=request.session,
        sent_ms=(exchange.sent_s - start_s) * MS,
        lag_ms=max(0.0, exchange.sent_s - due_s) * MS,
        latency_ms=(exchange.ended_s - exchange.sent_s) * MS,
        ttft_ms=(times[0] - exchange.sent_s) * MS if times else None,
        itl_ms=tuple((later - earlier) * MS for earlier, later in pairwise(times)),
        prompt_tokens=reader.prompt_tokens,
        cached_tokens=reader.cached_tokens,
        output_tokens=reader.output_tokens or len(times),
        worker=_name(headers, b"x-kvmesh-worker"),
        router=_name(headers, b"x-kvmesh-router"),
        bucket=_name(headers, b"x-kvmesh-bucket"),
        overlap_blocks=_count(headers, b"x-kvmesh-overlap-blocks"),
        status=exchange.status,
        error=exchange.error,
        detail=exchange.detail,
        program=request.program,
        held_ms=_held_ms(headers),
    )


def _held_ms(headers: dict[bytes, bytes]) -> float:
    """Return how long a router of ours says it held the request, ms."""
    text = headers.get(WAIT_HEADER, b"").decode("latin-1")
    return real_number(text, 0.0, MAX_FIGURE) or 0.0


def _name(headers: dict[bytes, bytes], header: bytes) -> str:
    value = headers.get(header)
    return value.decode("latin-1") if value else UNKNOWN


def _count(headers: dict[bytes, bytes], header: bytes) -> int | None:
    value = headers.get(header, b"")
    return int(value) if value.isdigit() else None
