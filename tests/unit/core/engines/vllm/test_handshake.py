from typing import Any

import msgspec
import pytest

from kvmesh.core.engines.vllm.handshake import decode_body, prefill_body, transfer_params
from kvmesh.errors import CodecError

BODY = (
    b'{"model":"m","messages":[{"role":"user","content":"\\u00e9"}],"stream":true,'
    b'"stream_options":{"include_usage":true},"max_completion_tokens":9,"min_tokens":3}'
)


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


def test_what_is_no_object_cannot_be_split() -> None:
    with pytest.raises(CodecError):
        prefill_body(b"[]")
