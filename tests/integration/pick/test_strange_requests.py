"""What nobody should send, or name, and a picker has to answer all the same."""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from kvmesh.app.picker.exchange import PickExchange
from kvmesh.transport.http.upstream.messages import UpstreamFailure
from kvmesh.transport.http.wire.headers import Header
from tests.integration.pick.room import CHAT, Asking, Room
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

SUBSET = ["10.0.0.0:8000", "10.0.0.1:8000", "10.0.0.2:8000"]


@pytest_asyncio.fixture
async def room() -> AsyncGenerator[Room]:
    made = Room()
    yield made
    await made.close()


async def until_told(stream: Asking) -> None:
    await until(lambda: stream.received)


async def test_a_worker_that_joined_just_now_is_not_within_a_subset_that_had_all(
    room: Room,
) -> None:
    room.ask().head(subset=SUBSET).body(CHAT)
    room.introduce("w9", "http://10.0.0.9:8000")

    picks = [room.ask().head(subset=SUBSET).body(CHAT).picked for _ in range(20)]

    assert set(picks) <= set(SUBSET)


async def test_a_worker_whose_name_is_not_resolved_is_left_out_for_another() -> None:
    long = "a" * 70  # longer than a label may be: refused without asking anybody
    room = Room(urls=[f"http://{long}.invalid:8000", "http://10.0.0.1:8000"])
    try:
        streams = [room.ask().head().body(CHAT) for _ in range(4)]
        for stream in streams:
            await until_told(stream)
        booked = {one.worker for one in room.booked().values()}
    finally:
        await room.close()

    assert {stream.picked for stream in streams} == {"10.0.0.1:8000"}
    assert booked == {"w1"}
    assert not room.errors


async def test_with_no_worker_that_can_be_named_the_gateway_hears_why() -> None:
    room = Room(urls=[f"http://{'a' * 70}.invalid:8000"])
    try:
        stream = room.ask().head().body(CHAT)
        await until_told(stream)
    finally:
        await room.close()

    status, headers, body = stream.refused
    assert status == 503
    assert headers["retry-after"] == "1"
    assert b"cannot be reached" in body
    assert b".invalid" not in body
    assert not room.booked()


async def test_a_path_with_a_fragment_is_refused_as_a_router_does(room: Room) -> None:
    status, _, body = room.ask().head("/v1/chat/completions#x").body(CHAT).refused

    assert status == 400
    assert b"is no method and path" in body


async def test_a_header_is_not_both_set_and_taken_off(room: Room) -> None:
    own: Header = (b"authorization", b"Bearer ours")
    room.pool.own_headers = (own,)

    def without_key(exchange: PickExchange) -> None:
        kept = [one for one in exchange.request.headers if one[0] != b"authorization"]
        exchange.request.replace_headers(kept)

    room.door.adapters.append(without_key)
    stream = room.ask().head("/v1/chat/completions", ("authorization", "Bearer theirs")).body(CHAT)

    mutation = stream.received[0].request_headers.response.header_mutation
    assert stream.set_in(mutation)["authorization"] == "Bearer ours"
    assert "authorization" not in mutation.remove_headers


async def test_alternatives_are_not_told_of_a_rank_that_only_the_chosen_one_has() -> None:
    room = Room(alternatives=2)
    try:
        room.introduce("w0", "http://10.0.0.0:8000", dp_rank=1, engine="vllm")
        picks = [room.ask().head().body(CHAT) for _ in range(12)]
    finally:
        await room.close()

    ranked = [one for one in picks if one.picked.startswith("10.0.0.0")]
    others = [one for one in picks if not one.picked.startswith("10.0.0.0")]
    assert ranked
    assert all("," not in one.picked for one in ranked)
    assert all("," in one.picked for one in others)


async def test_a_request_without_headers_is_refused_with_the_remedy(room: Room) -> None:
    streams = [room.ask().body(CHAT), room.ask().trailers()]

    assert [stream.status for stream in streams] == [3, 3]
    assert all("request_header_mode to SEND" in stream.text for stream in streams)
    assert room.counts.malformed == 2


async def test_a_client_whose_worker_hangs_is_answered_before_it_gives_up(room: Room) -> None:
    stream = room.ask().head().body(CHAT)
    [waiter] = room.context.hangs.waiting
    hung = UpstreamFailure("after_send", "hung", "it gave no answer in 7 s", stream.picked)

    waiter.forwarding.fail_attempt(hung)
    waiter.forwarding.fail_attempt(hung)

    status, headers, body = stream.refused
    assert (status, headers["retry-after"]) == (504, "1")
    assert b"stopped answering" in body
    assert not room.booked()
    assert not room.context.hangs.waiting
    assert not room.errors


async def test_an_answer_that_has_begun_is_not_taken_back(room: Room) -> None:
    stream = room.ask().head().body(CHAT)
    [waiter] = room.context.hangs.waiting
    forwarding = waiter.forwarding
    stream.answered()

    forwarding.fail_attempt(UpstreamFailure("after_send", "hung", "no answer", stream.picked))

    assert stream.came(b"data: [DONE]\n\n", end=True).sent_back(response=True) == (
        b"data: [DONE]\n\n",
        [True],
    )
    assert stream.status == 0
    assert not room.errors


async def test_a_body_that_is_replaced_for_whoever_serves_leaves_the_alternatives() -> None:
    room = Room(alternatives=2)
    room.door.adapters.append(lambda one: one.request.replace_body(CHAT + b" "))
    try:
        stream = room.ask().head().body(CHAT)
    finally:
        await room.close()

    assert stream.picked.count(",") == 2
    assert stream.sent_back() == (CHAT + b" ", [True])
