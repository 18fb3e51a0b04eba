import msgspec
import pytest

from kvmesh.core.engines.handshake import NO_PARAMS, Meeting
from kvmesh.core.engines.sglang.handshake import BOOTSTRAP

BODY = b'{"model":"m","messages":[],"stream":true}'


@pytest.mark.parametrize("rank", [None, 1])
def test_two_workers_are_told_where_to_meet(rank: int | None) -> None:
    meeting = Meeting("h", 8998, 2**62, rank)
    sent = msgspec.json.decode(BOOTSTRAP.prefill(BODY, meeting))

    found = sent["bootstrap_host"], sent["bootstrap_port"], sent["bootstrap_room"]
    assert (found, sent.get("disagg_prefill_dp_rank")) == (("h", 8998, 2**62), rank)
    assert sent["stream"] is True
    assert BOOTSTRAP.decode(BODY, meeting, NO_PARAMS) == BOOTSTRAP.prefill(BODY, meeting)
    assert BOOTSTRAP.beside
