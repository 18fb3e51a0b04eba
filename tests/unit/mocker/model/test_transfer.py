from array import array
from typing import Any

import pytest

from kvmesh.errors import RequestError
from kvmesh.mocker.model.transfer import MockTransfer

TOKENS = array("I", range(40))
ASK: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}


def offer(params: dict[str, Any] | None = ASK, **more: Any) -> Any:
    wanted = {"max_tokens": 1, "stream": False} | more
    return MockTransfer("prefill", "e1").begin(params, TOKENS, "r1", **wanted)


def accept(params: Any, *, tokens: "array[int]" = TOKENS, request_id: str = "r1") -> MockTransfer:
    half = MockTransfer("decode", "e2")
    assert half.begin(params, tokens, request_id, max_tokens=9, stream=True) is None
    return half


def test_an_offer_is_accepted_once() -> None:
    params = offer()
    half = accept(params)

    with pytest.raises(RequestError, match="fetched and freed already"):
        half.begin(params, TOKENS, "r1", max_tokens=9, stream=True)


def test_an_engine_that_transfers_nothing_takes_whole_requests_alone() -> None:
    both = MockTransfer("both", "e3")

    assert both.begin(None, TOKENS, "r", max_tokens=9, stream=True) is None
    assert accept(None) is not None
    with pytest.raises(RequestError, match="transfers no KV cache"):
        both.begin(offer(), TOKENS, "r", max_tokens=9, stream=True)


@pytest.mark.parametrize(
    ("params", "more", "why"),
    [
        (None, {}, "needs do_remote_decode"),
        ({"do_remote_prefill": False}, {}, "needs do_remote_decode"),
        ({"do_remote_decode": True}, {}, "fetches nothing"),
        (ASK | {"remote_block_ids": [1]}, {}, "fetches nothing"),
        (ASK, {"max_tokens": 2}, "one token"),
        (ASK, {"stream": True}, "one token"),
    ],
)
def test_a_prefill_that_would_not_work_is_refused(
    params: dict[str, Any] | None, more: dict[str, Any], why: str
) -> None:
    with pytest.raises(RequestError, match=why):
        offer(params, **more)


def test_a_decode_that_would_not_work_is_refused() -> None:
    good = offer()
    for params, why in (
        (ASK, "needs do_remote_prefill"),
        (good | {"do_remote_decode": True}, "needs do_remote_prefill"),
        (good | {"remote_engine_id": None}, "not of this prompt"),
        (good | {"remote_block_ids": ["x"]}, "not of this prompt"),
        (good | {"remote_request_id": "r2"}, "is not r2"),
    ):
        with pytest.raises(RequestError, match=why):
            accept(params)
    with pytest.raises(RequestError, match="not of this prompt"):
        accept(good, tokens=array("I", range(39)))
