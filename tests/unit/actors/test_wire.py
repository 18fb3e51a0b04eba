import msgspec
import pytest

from kvmesh.actors.messages import Resync, RouterHeartbeat, WorkerHeartbeat
from kvmesh.actors.wire import Subjects, decode, encode, fitting, fixed_part, last_token
from kvmesh.core.blocks.events import WorkerId
from kvmesh.errors import CodecError

HEARTBEAT = WorkerHeartbeat(
    worker=WorkerId("w"),
    bucket="code",
    epoch=1,
    last_seq=2,
    url="http://w",
    models=("m",),
    block_size=16,
)


def test_subjects_name_bucket_and_member() -> None:
    subjects = Subjects("kvmesh", "code")

    assert subjects.events("w") == "kvmesh.ev.code.w"
    assert subjects.heartbeats() == "kvmesh.hb.code.*"
    assert subjects.routers("r") == "kvmesh.rt.code.r"
    assert subjects.bookings("r") == "kvmesh.seq.code.r"
    assert subjects.named_streams("r") == "kvmesh.str.code.r"
    assert subjects.named_streams() == "kvmesh.str.code.*"
    assert subjects.usage("r") == "kvmesh.use.code.r"
    assert subjects.limits("r") == "kvmesh.lim.code.r"
    assert subjects.control("x") == "kvmesh.ctl.code.x"
    assert subjects.router_control("x") == "kvmesh.rctl.code.x"
    assert subjects.stream() == "KVMESH_EVENTS_code"
    assert last_token("a.b.c") == "c"


def test_messages_survive_the_wire() -> None:
    resync = Resync(WorkerId("w"), 3, 4, "r")

    assert decode(encode(HEARTBEAT), WorkerHeartbeat) == HEARTBEAT
    assert decode(encode(resync), Resync) == resync


def test_a_kind_of_engine_travels_only_where_it_must_be_named() -> None:
    named = msgspec.structs.replace(HEARTBEAT, engine="odd")

    assert b"engine" not in encode(HEARTBEAT)
    assert decode(encode(HEARTBEAT), WorkerHeartbeat).engine_kind == ""
    assert decode(encode(named), WorkerHeartbeat).engine_kind == "odd"


@pytest.mark.parametrize("data", [b"", b"\xc1", b"{}", encode(HEARTBEAT), b"\x93" * 2000])
def test_what_is_no_such_message_is_a_codec_error(data: bytes) -> None:
    with pytest.raises(CodecError, match="RouterHeartbeat"):
        decode(data, RouterHeartbeat)


@pytest.mark.parametrize(
    ("pattern", "fixed"),
    [
        ("kvmesh.hb.code.*", "kvmesh.hb.code."),
        ("kvmesh.rt.*.*", "kvmesh.rt."),
        ("$KV.kvmesh_homes.>", "$KV.kvmesh_homes."),
        ("kvmesh.rctl.code.r1", "kvmesh.rctl.code.r1"),
    ],
)
def test_the_fixed_part_of_a_pattern_ends_at_its_first_wildcard(pattern: str, fixed: str) -> None:
    assert fixed_part(pattern) == fixed


def test_names_beyond_what_a_message_holds_are_left_out() -> None:
    names = [f"model-{number:04}" * 10 for number in range(10_000)]

    kept = fitting(names, 1000)

    assert kept == tuple(names[:9])
    assert len(msgspec.msgpack.encode(kept)) <= 1000
    assert fitting(["a", "b"], 1000) == ("a", "b")
