import msgspec
import pytest

from kvmesh.core.programs.shared import (
    FORMAT,
    MAX_BYTES,
    AgentUpdate,
    at,
    decode_update,
    encode_update,
)
from kvmesh.core.programs.table import AgentRecord, check_record
from kvmesh.errors import CodecError, NewerError

KEY = "a" * 32
RECORD = AgentRecord(
    revision=7,
    agent=KEY,
    program="b" * 32,
    tenant="t",
    client="codex",
    phase="running",
    worker="w0",
    tokens=104_000,
    age_s=3.5,
    since_s=0.25,
)


def test_ages_go_on_while_a_record_lies_in_the_table_and_never_back() -> None:
    updates = AgentUpdate(FORMAT, "r0", 5, 100.0, RECORD)

    assert (at(updates, 10.0).age_s, at(updates, 10.0).since_s) == (13.5, 10.25)
    assert at(updates, -60.0) == RECORD, "a clock that is ahead makes nobody younger"
    assert check_record(KEY, at(updates, 1e300)) == "", "nor one that is far behind anybody unfit"


def test_a_newer_format_is_said_to_be_newer_whatever_it_holds() -> None:
    with pytest.raises(NewerError, match="programs format 9 is not among those read") as caught:
        decode_update(msgspec.msgpack.encode([9, {"all": "different"}]))

    assert caught.value.number == 9


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"w0",
        msgspec.msgpack.encode([FORMAT]),
        msgspec.msgpack.encode([FORMAT, "r0", 5, -1.0, {}]),
        msgspec.msgpack.encode([FORMAT, "r0", 5, 1.0, {"revision": 1}]),
        msgspec.msgpack.encode([FORMAT, "r0" * 200, 5, 1.0, RECORD]),
        msgspec.msgpack.encode([FORMAT, "r0", 2**63, 1.0, RECORD]),
        msgspec.msgpack.encode([FORMAT, "r0", 5, 1e300, RECORD]),
        encode_update("r0", 5, 1.0, msgspec.structs.replace(RECORD, tool="x" * MAX_BYTES)),
        b"\x95" * 2000,
    ],
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode_update(data)
