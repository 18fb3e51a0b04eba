from typing import Any

import msgspec
import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.disaggregation import (
    DECODE,
    PREFILL,
    Meeting,
    decode_body,
    decode_request,
    meeting_body,
    prefill_body,
    prefill_request,
    role_marks,
    transfer_params,
)
from kvmesh.errors import CodecError

BODY = (
    b'{"model":"m","messages":[{"role":"user","content":"\\u00e9"}],"stream":true,'
    b'"stream_options":{"include_usage":true},"max_completion_tokens":9,"min_tokens":3}'
)
REQUEST = RouteRequest("r", BlockHashes.of([1], 16), 20, expected_output_tokens=9)


def test_roles_are_labels_and_taints() -> None:
    assert role_marks("both", bootstrap=False) == ((), ())
    assert role_marks("prefill", bootstrap=False) == ((PREFILL,), (PREFILL,))
    assert role_marks("decode", bootstrap=False) == ((DECODE,), ())
    assert role_marks("decode", bootstrap=True) == ((DECODE,), (DECODE,))


def test_a_prefill_is_a_request_of_its_own_for_prefill_workers() -> None:
    wanted = prefill_request(REQUEST, frozenset([WorkerId("w")]))

    assert wanted.request_id != REQUEST.request_id
    assert wanted.labels == wanted.tolerations == {PREFILL}
    assert wanted.excluded == {WorkerId("w")}
    assert (wanted.expected_output_tokens, wanted.streams) == (1, False)


def test_a_decode_has_nothing_left_to_prefill() -> None:
    wanted = decode_request(REQUEST)

    assert (wanted.request_id, wanted.prefilled) == ("r", True)
    assert wanted.labels == wanted.tolerations == {DECODE}


def test_the_prefill_worker_is_asked_for_one_token_and_the_transfer() -> None:
    sent: dict[str, Any] = msgspec.json.decode(prefill_body(BODY))

    assert set(sent) == {"model", "messages", "stream", "max_tokens", "kv_transfer_params"}
    assert (sent["stream"], sent["max_tokens"]) == (False, 1)
    assert sent["kv_transfer_params"] == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    assert b'"\\u00e9"' in prefill_body(BODY)


def test_what_it_answers_goes_to_the_decode_worker_as_it_is() -> None:
    params = transfer_params(b'{"id":"x","kv_transfer_params":{"a":[1, 2]}}')

    assert params is not None
    sent = decode_body(BODY, params)
    assert b'"kv_transfer_params":{"a":[1, 2]}' in sent
    assert msgspec.json.decode(sent)["min_tokens"] == 3


@pytest.mark.parametrize("answer", [b"{}", b'{"kv_transfer_params":null}', b"<html>", b"\xff"])
def test_an_answer_may_transfer_nothing(answer: bytes) -> None:
    assert transfer_params(answer) is None


@pytest.mark.parametrize("rank", [None, 1])
def test_two_workers_are_told_where_to_meet(rank: int | None) -> None:
    sent = msgspec.json.decode(meeting_body(BODY, Meeting("h", 8998, 2**62, rank)))

    found = sent["bootstrap_host"], sent["bootstrap_port"], sent["bootstrap_room"]
    assert found == ("h", 8998, 2**62)
    assert sent.get("disagg_prefill_dp_rank") == rank
    assert sent["stream"] is True


def test_what_is_no_object_cannot_be_split() -> None:
    with pytest.raises(CodecError):
        prefill_body(b"[]")
