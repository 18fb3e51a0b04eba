import asyncio
from collections.abc import Sequence
from time import perf_counter

from kvmesh.replay.load import send_closed_loop, send_open_loop
from kvmesh.traces.trace import TraceRequest

SERVICE_S = 0.03


def request(index: int, at: float, *, delay: float | None = None) -> TraceRequest:
    return TraceRequest(
        index=index,
        timestamp_ms=at,
        input_tokens=1,
        output_tokens=1,
        block_ids=(),
        delay_ms=delay,
    )


class Server:
    """Answers after a fixed time, and notes who was open when."""

    def __init__(self) -> None:
        self.start_s = perf_counter()
        self.started: dict[int, float] = {}
        self.lags: list[float] = []
        self.open = 0
        self.most_open = 0

    async def send(self, request: TraceRequest, due_s: float) -> None:
        now = perf_counter()
        self.started[request.index] = now - self.start_s
        self.lags.append(now - due_s)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        await asyncio.sleep(SERVICE_S)
        self.open -= 1


async def test_open_loop_sends_at_trace_times_whatever_is_open() -> None:
    server = Server()
    chains: Sequence[tuple[TraceRequest, ...]] = [(request(i, 5.0 * i),) for i in range(8)]

    await send_open_loop(chains, server.send)

    assert all(server.started[i] >= 0.005 * i - 0.001 for i in range(8))
    assert server.most_open >= 4
    assert min(server.lags) >= -0.002


async def test_later_turns_wait_for_the_turn_before_and_think() -> None:
    server = Server()
    chain = (request(0, 0), request(1, 0, delay=20), request(2, 0))

    await send_open_loop([chain], server.send)

    assert server.most_open == 1
    assert server.started[1] - server.started[0] >= SERVICE_S + 0.018
    assert server.started[2] - server.started[1] >= SERVICE_S - 0.002


async def test_a_later_turn_without_delay_keeps_its_time() -> None:
    server = Server()

    await send_open_loop([(request(0, 0), request(1, 90))], server.send)

    assert server.started[1] >= 0.089


async def test_closed_loop_keeps_so_many_open_and_ignores_times() -> None:
    server = Server()
    chains = [(request(i, 1e9 * i),) for i in range(9)]

    await send_closed_loop(chains, 3, server.send)

    assert server.most_open == 3
    assert list(server.started) == list(range(9))


async def test_closed_loop_keeps_sessions_in_order() -> None:
    server = Server()
    chains = [(request(0, 0), request(1, 0, delay=10)), (request(2, 0),)]

    await send_closed_loop(chains, 8, server.send)

    assert server.most_open == 2
    assert server.started[1] - server.started[0] >= SERVICE_S + 0.008
