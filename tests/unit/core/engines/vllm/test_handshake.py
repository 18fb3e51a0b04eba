from typing import Any

import msgspec
import pytest

from kvmesh.core.engines.handshake import NO_PARAMS, Connector, Meeting
from kvmesh.core.engines.vllm.handshake import (
    CONNECTORS,
    MOONCAKE,
    NIXL,
    NIXL_PUSH,
    P2P_NCCL,
    mooncake_engine_ids,
    transfer_params,
)
from kvmesh.errors import CodecError

BODY = (
    b'{"model":"m","messages":[{"role":"user","content":"\\u00e9"}],"stream":true,"stop":["x"],'
    b'"stream_options":{"include_usage":true},"max_completion_tokens":9,"min_tokens":3}'
)
MEETING = Meeting("h", 8998, 255, 1, "engine-7", "d", 21001)
ANSWER = (
    b'{"id":"x","kv_transfer_params":{"remote_block_ids":[[1, 2]],"remote_engine_id":"e",'
    b'"remote_host":"h","remote_port":5600%b}}'
)


def sent(body: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.json.decode(body)
    return fields


@pytest.mark.parametrize("way", CONNECTORS)
def test_a_prefill_worker_is_asked_for_one_token(way: Connector) -> None:
    asked = sent(way.prefill(BODY, MEETING))

    assert asked.keys().isdisjoint({"stream_options", "max_completion_tokens", "min_tokens"})
    assert (asked["stream"], asked["max_tokens"]) == (False, 1)
    assert b'"\\u00e9"' in way.prefill(BODY, MEETING)


@pytest.mark.parametrize("way", CONNECTORS)
def test_the_decode_worker_gets_what_the_client_sent(way: Connector) -> None:
    decoded = sent(way.decode(BODY, MEETING, NO_PARAMS))

    decoded.pop("kv_transfer_params", None)
    assert decoded == sent(BODY)


@pytest.mark.parametrize("way", [NIXL, NIXL_PUSH])
def test_a_nixl_prefill_worker_is_asked_for_the_transfer(way: Connector) -> None:
    assert sent(way.prefill(BODY, MEETING))["kv_transfer_params"] == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }


def test_what_it_answers_goes_to_the_decode_worker_as_it_is() -> None:
    params = transfer_params(ANSWER % b"")

    assert params is not None
    decoded = NIXL.decode(BODY, MEETING, params)
    assert b'"kv_transfer_params":{"remote_block_ids":[[1, 2]],"remote_engine_id":"e"' in decoded


@pytest.mark.parametrize(
    "answer",
    [
        b"{}",
        b'{"kv_transfer_params":null}',
        b'{"kv_transfer_params":[]}',
        b'{"kv_transfer_params":{"remote_host":"h","remote_port":1,"remote_engine_id":null}}',
        b'{"kv_transfer_params":{"remote_host":"h","remote_port":1}}',
        b"<html>",
        b"\xff",
    ],
)
def test_an_answer_may_transfer_nothing(answer: bytes) -> None:
    assert transfer_params(answer) is None


def test_mooncake_is_told_of_one_transfer_on_both_sides() -> None:
    prefill = sent(MOONCAKE.prefill(BODY, MEETING))
    decode = sent(MOONCAKE.decode(BODY, MEETING, NO_PARAMS))["kv_transfer_params"]

    assert prefill["ignore_eos"] is True
    assert "stop" not in prefill
    assert prefill["kv_transfer_params"] == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "transfer_id": "kvmesh-00000000000000ff",
    }
    assert decode == {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "transfer_id": "kvmesh-00000000000000ff",
        "remote_bootstrap_addr": "http://h:8998",
        "remote_engine_id": "engine-7",
    }


@pytest.mark.parametrize(
    ("page", "found"),
    [
        (b'{"0":{"engine_id":"a","worker_addr":{}},"1":{"engine_id":"b"}}', {0: "a", 1: "b"}),
        (b'{"-1":{"engine_id":"a"}}', {}),
        (b'{"10000000000000000000000000":{"engine_id":"a"}}', {}),
        (b'{"0":{"engine_id":7}}', {}),
        (b"[]", {}),
        (b"\xff", {}),
    ],
)
def test_a_bootstrap_server_tells_its_engines_by_rank(page: bytes, found: dict[int, str]) -> None:
    assert mooncake_engine_ids(page) == found


def test_p2p_workers_find_each_other_in_the_requests_id() -> None:
    assert P2P_NCCL.request_id is not None
    name = P2P_NCCL.request_id(MEETING)

    assert name == b"___prefill_addr_h:8998___decode_addr_d:21001_" + b"%032x" % 255
    assert not P2P_NCCL.whole


@pytest.mark.parametrize("way", CONNECTORS)
def test_what_is_no_object_cannot_be_split(way: Connector) -> None:
    with pytest.raises(CodecError):
        way.prefill(b"[]", MEETING)
