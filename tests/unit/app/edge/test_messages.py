import msgspec
import pytest

from kvmesh.app.edge.messages import (
    MOST_BLOCKS,
    Ask,
    EdgeCodec,
    FromEdge,
    Go,
    Hello,
    IndexCodec,
    Progress,
    Refuse,
    RequestEnded,
    ToEdge,
    WorkerUpdate,
    ask,
    asked,
)
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.engines.sse import Usage
from kvmesh.core.members.last_known import KnownWorker
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.errors import CodecError
from kvmesh.transport.http.forward.plan import Outcome
from kvmesh.transport.http.upstream.messages import UpstreamFailure
from kvmesh.transport.http.wire.problem import Problem

NOT_SENT = {"excluded", "prefilled", "choices", "timeout_s", "estimated"}
"""What the index process knows by itself, and what is for the edge, which forwards."""


def test_every_wish_of_a_client_reaches_the_index_process() -> None:
    wishes = RouteRequest(
        request_id="r#e0-1",
        hashes=BlockHashes(list(range(100)), 16, root=7),
        prompt_tokens=100,
        expected_output_tokens=9,
        model="m",
        mode="least-loaded",
        temperature=0.5,
        overlap_score_weight=2.0,
        pinned_worker=WorkerId("w1"),
        priority=3,
        streams=False,
        tenant="t",
        session="s",
        cost="dynamo",
        allowed_workers=frozenset([WorkerId("w1")]),
        labels=frozenset(["gpu"]),
        tolerations=frozenset(["batch"]),
        approximate=True,
        overridden=True,
    )
    plain = RouteRequest("", BlockHashes([], 16), 0)
    for field in msgspec.structs.fields(RouteRequest):
        unset = getattr(wishes, field.name) == getattr(plain, field.name)
        assert unset == (field.name in NOT_SENT), f"{field.name} is not tried here"

    (arrived,) = IndexCodec().decode(memoryview(EdgeCodec().encode([ask(5, wishes, b"r")])))

    assert isinstance(arrived, Ask)
    assert (arrived.n, arrived.visible_id) == (5, b"r")
    found = asked(arrived, 16)
    assert found.hashes.upto(6) == wishes.hashes.upto(6)
    assert found.hashes.blocks == 6
    for name in set(RouteRequest.__struct_fields__) - {"hashes"}:
        assert getattr(found, name) == getattr(wishes, name)


def test_both_ways_messages_arrive_as_sent() -> None:
    failure = UpstreamFailure("after_send", "reset", "gone", "http://a")
    up: list[FromEdge] = [
        Hello(1, 2),
        RequestEnded(3, Outcome("cut", 200, 1, failure), Usage(7, 8, 9)),
    ]
    down: list[ToEdge] = [
        Go(1, WorkerId("w"), "http://a", [(b"x", b"1")], [(b"y", b"\xff")]),
        Refuse(2, Problem(503, "no", retry_after_s=1)),
        WorkerUpdate(
            [KnownWorker(WorkerId("w"), "http://a", ("m",), 3, usable=True)], "http://i", 32
        ),
    ]

    assert IndexCodec().decode(memoryview(EdgeCodec().encode(up))) == up
    assert EdgeCodec().decode(memoryview(IndexCodec().encode(down))) == down


@pytest.mark.parametrize("garbage", [b"", b"\x91\x92\x63\x01", b"\xc1", b"\x01"])
def test_garbage_is_a_codec_error(garbage: bytes) -> None:
    with pytest.raises(CodecError, match="edge process"):
        IndexCodec().decode(memoryview(garbage))
    with pytest.raises(CodecError, match="index process"):
        EdgeCodec().decode(memoryview(garbage))


def test_of_a_very_long_prompt_the_beginning_is_told() -> None:
    hashes = BlockHashes.unpack(bytes(8 * (MOST_BLOCKS + 3)), 16)
    request = RouteRequest("r", hashes, 16 * (MOST_BLOCKS + 3))

    data = EdgeCodec().encode([ask(1, request, b"r")])
    (arrived,) = IndexCodec().decode(memoryview(data))

    assert isinstance(arrived, Ask)
    assert asked(arrived, 16).hashes.blocks == MOST_BLOCKS
    assert arrived.prompt_tokens == 16 * (MOST_BLOCKS + 3)
    assert len(data) < 2 << 20


@pytest.mark.parametrize("tokens", [-1, 2**31, 2**63])
def test_a_message_beyond_the_bounds_is_a_codec_error(tokens: int) -> None:
    with pytest.raises(CodecError, match="edge process"):
        IndexCodec().decode(memoryview(EdgeCodec().encode([Progress(1, tokens)])))
