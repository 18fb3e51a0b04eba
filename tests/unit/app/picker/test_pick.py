"""What becomes of a request that a gateway sends: tokens, failures, moves, waits."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from kvmesh.app.front.tracing import tracer_for
from tests.integration.pick.room import CHAT, Asking, Room

EVENT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
DETAILS = "response.code_details"


@pytest.fixture
async def room() -> AsyncGenerator[Room]:
    one = Room()
    yield one
    assert one.errors == []
    assert one.booked() == {}
    await one.close()


def error_of(stream: Asking) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(stream.refused[2])["error"]
    return found


async def test_usage_and_tokens_of_a_stream_are_learned(room: Room) -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}\n\n'
    stream = room.ask().head().body(CHAT).answered()
    for _ in range(20):
        stream.came(EVENT)
    grown = next(iter(room.booked().values())).output_tokens
    stream.came(usage + DONE, end=True)

    assert grown == 17
    record = room.context.decisions.records.latest(1)[0]
    assert (record.state, record.status, record.output_tokens) == ("finished", 200, 17)
    assert room.context.routing.tokens.prompt > 0


async def test_usage_of_a_whole_answer_is_learned_in_pieces(room: Room) -> None:
    answer = b'{"choices":[{"text":"x"}],"usage":{"prompt_tokens":9,"completion_tokens":3}}'
    stream = room.ask().head().body(CHAT).answered(kind="application/json")
    stream.came(answer[:30]).came(answer[30:], end=True)

    assert room.context.decisions.records.latest(1)[0].state == "finished"
    assert stream.sent_back(response=True)[0] == answer


async def test_an_answer_too_long_to_be_kept_is_passed_on_all_the_same(room: Room) -> None:
    stream = room.ask().head().body(CHAT).answered(kind="application/json")
    for _ in range(20):
        stream.came(b"x" * 60_000)
    stream.came(b"", end=True)

    assert len(stream.sent_back(response=True)[0]) == 1_200_000


@pytest.mark.parametrize(
    ("status", "details", "kind"),
    [
        (503, None, "503"),
        (500, "via_upstream", "500"),
        (503, "upstream_reset_before_response_started{connection_termination}", "reset"),
        (503, "upstream_reset_before_response_started{remote_connection_failure}", "refused"),
        (504, "response_timeout", "timeout"),
        (504, "upstream_per_try_timeout", "timeout"),
        (503, "no_healthy_upstream", ""),
        (500, "ext_proc_error_grpc_error_14", ""),
        (404, None, ""),
    ],
)
async def test_a_failure_is_blamed_on_the_worker_only_if_it_is_its_own(
    room: Room, status: int, details: str | None, kind: str
) -> None:
    attributes = None if details is None else {DETAILS: details, "response.flags": 4}
    stream = room.ask().head().body(CHAT)
    stream.answered(status, kind="text/plain", attributes=attributes).came(b"no", end=True)

    failures = room.context.counters.failures.as_dict()
    assert [reported for _, reported in failures] == ([kind] if kind else [])
    assert stream.sent_back(response=True)[0] == b"no"


async def test_a_router_behind_the_gateway_has_tried_others_already(room: Room) -> None:
    stream = room.ask().head().body(CHAT)
    stream.answered(503, ("x-kvmesh-worker", "w9")).came(b"", end=True)

    assert room.context.counters.attempts_failed == 0


async def test_the_worker_that_served_instead_has_the_booking(room: Room) -> None:
    stream = room.ask().head().body(CHAT)
    first = stream.picked
    other = next(f"10.0.0.{n}:8000" for n in range(3) if f"10.0.0.{n}:8000" != first)
    stream.answered(served=other).came(EVENT)
    booking = next(iter(room.booked().values()))

    assert f"10.0.0.{booking.worker[1:]}:8000" == other
    assert room.counts.moved == 1
    reported = stream.set_in(stream.received[2].response_headers.response.header_mutation)
    assert (reported["x-kvmesh-worker"], reported["x-kvmesh-attempts"]) == (booking.worker, "2")
    assert room.context.counters.attempts_failed == 1
    stream.came(DONE, end=True)


@pytest.mark.parametrize("served", ["same", "10.9.9.9:1", "nonsense"])
async def test_a_word_of_who_served_that_tells_nothing_new_moves_nothing(
    room: Room, served: str
) -> None:
    stream = room.ask().head().body(CHAT)
    before = next(iter(room.booked().values())).worker
    stream.answered(served=stream.picked if served == "same" else served)
    after = next(iter(room.booked().values())).worker

    assert before == after
    assert room.counts.moved == 0
    stream.came(DONE, end=True)


async def test_a_request_that_is_held_is_answered_when_its_turn_comes() -> None:
    room = Room(1, admission__max_backlog_ms=1.0)
    chat = CHAT.replace(b"hello", b"hello " * 3000)
    first = room.ask().head().body(chat)
    second = room.ask().head().body(chat)
    held = second.kinds()
    first.answered().came(EVENT).came(DONE, end=True)
    async with asyncio.timeout(5):
        while not second.picked:  # noqa: ASYNC110  the gate looks each some ms
            await asyncio.sleep(0.005)
    second.answered().came(DONE, end=True)

    assert held == []
    assert (first.picked, second.picked) == ("10.0.0.0:8000", "10.0.0.0:8000")
    assert room.booked() == {}
    await room.close()


async def test_a_deadline_is_kept_until_the_request_is_sent() -> None:
    room = Room(1, admission__max_backlog_ms=1.0, stream__request_timeout_s=0.2)
    chat = CHAT.replace(b"hello", b"hello " * 3000)
    first = room.ask().head().body(chat)
    second = room.ask().head().body(chat)
    async with asyncio.timeout(5):
        while second.status is None:  # noqa: ASYNC110  the wheel turns
            await asyncio.sleep(0.01)
    first.answered().came(DONE, end=True)

    assert (second.refused[0], error_of(second)["code"]) == (504, "deadline")
    await room.close()


@pytest.mark.parametrize(
    ("subset", "picked"),
    [
        (["10.0.0.1:8000"], "10.0.0.1:8000"),
        (["10.0.0.1:8000", "10.0.0.77:1"], "10.0.0.1:8000"),
        ([], ""),
        (["10.0.0.77:1"], ""),
    ],
)
async def test_a_subset_is_obeyed_or_refused(room: Room, subset: list[str], picked: str) -> None:
    stream = room.ask().head(subset=subset).body(CHAT)

    assert stream.picked == picked
    if picked:
        stream.answered().came(DONE, end=True)
    else:
        assert stream.refused[0] == 503
        assert error_of(stream)["code"] == "no_worker"


async def test_a_clients_own_wish_does_not_widen_the_subset(room: Room) -> None:
    wish = ("x-kvmesh-worker-id", "w0")
    stream = room.ask().head("/v1/chat/completions", wish, subset=["10.0.0.1:8000"]).body(CHAT)

    assert stream.refused[0] == 503


async def test_alternatives_follow_in_order_within_the_subset() -> None:
    room = Room(4, alternatives=2)
    plain = room.ask().head().body(CHAT)
    narrow = room.ask().head(subset=["10.0.0.1:8000", "10.0.0.2:8000"]).body(CHAT)

    assert len(set(plain.picked.split(","))) == 3
    assert sorted(narrow.picked.split(",")) == ["10.0.0.1:8000", "10.0.0.2:8000"]
    plain.on_reset(8)
    narrow.on_reset(8)
    await room.close()


async def test_a_trace_goes_on_and_costs_no_alternative() -> None:
    room = Room(4, alternatives=2, tracer=tracer_for("http://127.0.0.1:9", "picker"))
    stream = room.ask().head().body(CHAT)

    assert len(stream.picked.split(",")) == 3
    reported = stream.set_in(stream.received[0].request_headers.response.header_mutation)
    assert reported["traceparent"].endswith("-01")
    stream.on_reset(8)
    await room.close()


async def test_what_is_said_to_the_chosen_worker_alone_is_said_to_no_other() -> None:
    room = Room(0, alternatives=2)
    for number in range(3):
        url = f"http://10.0.0.{number + 1}:8000"
        room.introduce(f"r{number}", url, dp_rank=number, engine="vllm")
    stream = room.ask().head().body(CHAT)

    assert len(stream.picked.split(",")) == 1
    stream.on_reset(8)
    await room.close()


async def test_a_name_is_resolved_before_it_is_told() -> None:
    room = Room(urls=["http://localhost:8123"])
    stream = room.ask().head().body(CHAT)
    async with asyncio.timeout(5):
        while not stream.picked:  # noqa: ASYNC110  a thread looks the name up
            await asyncio.sleep(0.001)
    again = room.ask().head().body(CHAT)

    assert stream.picked == again.picked
    assert stream.picked in {"127.0.0.1:8123", "[::1]:8123"}
    stream.on_reset(8)
    again.on_reset(8)
    await room.close()


async def test_a_name_that_is_none_is_nobodys_endpoint() -> None:
    room = Room(urls=["http://no.such.name.invalid:8123"])
    stream = room.ask().head().body(CHAT)
    async with asyncio.timeout(20):
        while stream.status is None:  # noqa: ASYNC110  a thread looks the name up
            await asyncio.sleep(0.001)

    assert stream.refused[0] == 503
    assert room.booked() == {}
    await room.close()


async def test_a_rank_is_told_by_its_header() -> None:
    room = Room(0)
    room.introduce("r1", "http://10.0.0.5:8000", dp_rank=1, engine="vllm")
    stream = room.ask().head().body(CHAT)

    reported = stream.set_in(stream.received[0].request_headers.response.header_mutation)
    assert stream.picked == "10.0.0.5:8000"
    assert reported["x-data-parallel-rank"] == "1"
    stream.on_reset(8)
    await room.close()


async def test_a_body_that_was_changed_goes_on_in_place_of_the_clients(room: Room) -> None:
    def rewrite(exchange: Any) -> None:
        exchange.request.replace_body(exchange.request.body.replace(b'"m"', b'"longer"'))

    room.door.adapters.append(rewrite)
    stream = room.ask().head().body(CHAT)
    changed = CHAT.replace(b'"m"', b'"longer"')

    reported = stream.set_in(stream.received[0].request_headers.response.header_mutation)
    assert stream.sent_back()[0] == changed
    assert reported["content-length"] == str(len(changed))
    stream.answered().came(DONE, end=True)


async def test_headers_that_were_taken_off_do_not_go_on(room: Room) -> None:
    def guard(exchange: Any) -> None:
        request = exchange.request
        kept = [one for one in request.headers if one[0] != b"authorization"]
        request.replace_headers([*kept, (b"x-tenant", b"a")])

    room.door.adapters.append(guard)
    stream = room.ask().head("/v1/chat/completions", ("authorization", "Bearer key")).body(CHAT)

    mutation = stream.received[0].request_headers.response.header_mutation
    assert list(mutation.remove_headers) == ["authorization"]
    assert stream.set_in(mutation)["x-tenant"] == "a"
    stream.answered().came(DONE, end=True)


async def test_a_request_that_ended_two_workers_is_refused(room: Room) -> None:
    gone = {DETAILS: "upstream_reset_before_response_started{connection_termination}"}
    for worker in range(2):
        pin = ("x-kvmesh-worker-id", f"w{worker}")
        stream = room.ask().head("/v1/chat/completions", pin).body(CHAT)
        stream.answered(503, attributes=gone).came(b"", end=True)
    guard = room.pool.poison
    assert len(guard.suspects) == 2
    for origin in guard.suspects:
        guard.gone(origin, asyncio.get_running_loop().time())

    stream = room.ask().head().body(CHAT)

    assert (stream.refused[0], error_of(stream)["code"]) == (422, "poison")
    assert stream.refused[1]["x-should-retry"] == "false"
