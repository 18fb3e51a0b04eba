import asyncio
from collections.abc import Sequence
from time import perf_counter

from kvmesh_lab.replay.load import send_closed_loop, send_open_loop
from kvmesh_lab.traces.trace import TraceRequest

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


def turn(
    index: int, session: str, *, delay: float | None = None, after: int | None = None
) -> TraceRequest:
    return TraceRequest(
        index=index,
        timestamp_ms=0.0,
        input_tokens=1,
        output_tokens=1,
        block_ids=(),
        session=session,
        delay_ms=delay,
        program="a",
        parent="" if session == "a" else "a",
        after=after,
    )


def family() -> list[tuple[TraceRequest, ...]]:
    parent = (turn(0, "a"), turn(1, "a", delay=60))
    agent = (turn(2, "b", delay=20, after=0), turn(3, "b", delay=0))
    return [parent, agent]


async def test_a_sub_agent_begins_behind_its_parents_turn_while_that_pauses() -> None:
    for send in (send_open_loop, lambda chains, send: send_closed_loop(chains, 1, send)):
        server = Server()

        await send(family(), server.send)

        assert server.started[2] - server.started[0] >= SERVICE_S + 0.018
        assert server.started[2] < server.started[1]
        assert server.started[3] - server.started[2] >= SERVICE_S - 0.002


async def test_a_closed_loop_waits_for_all_of_a_program_before_the_next_begins() -> None:
    server = Server()
    other = (request(9, 0.0),)

    await send_closed_loop([*family(), other], 1, server.send)

    assert server.started[9] >= max(server.started[1], server.started[3]) + SERVICE_S - 0.002


async def test_a_sub_agent_whose_parents_turn_was_cut_away_begins_by_itself() -> None:
    server = Server()

    await send_open_loop(family()[1:], server.send)

    assert set(server.started) == {2, 3}
