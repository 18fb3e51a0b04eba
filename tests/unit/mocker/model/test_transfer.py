from array import array
from typing import Any

import pytest

from kvmesh.errors import RequestError
from kvmesh_lab.mocker.model.transfer import MockTransfer

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


def test_several_prompts_at_once_would_end_a_decode_worker() -> None:
    half = MockTransfer("decode", "e2")

    with pytest.raises(RequestError, match="num_decode_blocks") as ended:
        half.begin(offer(), TOKENS, "r1", max_tokens=9, stream=True, sequences=2)
    assert ended.value.status == 500
    assert half.begin(None, TOKENS, "r2", max_tokens=9, stream=True, sequences=2) is None


def test_a_pushed_transfer_names_its_ranks() -> None:
    pushed = MockTransfer("prefill", "e1", "nixl-push").begin(
        ASK, TOKENS, "r1", max_tokens=1, stream=False
    )
    assert pushed is not None
    half = MockTransfer("decode", "e2", "nixl-push")

    assert pushed["transfer_mode"] == "push"
    with pytest.raises(RequestError, match="tp_size"):
        half.begin({**pushed, "tp_size": None}, TOKENS, "r1", max_tokens=9, stream=True)
    assert half.begin(pushed, TOKENS, "r1", max_tokens=9, stream=True) is None


def test_a_shared_store_is_told_nothing() -> None:
    prefill = MockTransfer("prefill", "e1", "shared")

    assert prefill.begin(None, TOKENS, "r", max_tokens=1, stream=False) is None
    with pytest.raises(RequestError, match="names no transfer"):
        prefill.begin(ASK, TOKENS, "r", max_tokens=1, stream=False)
    with pytest.raises(RequestError, match="one token"):
        prefill.begin(None, TOKENS, "r", max_tokens=2, stream=False)


def test_what_a_side_channel_checks_is_not_looked_at() -> None:
    aside = MockTransfer("both", "e1", "aside")

    assert aside.begin(ASK, TOKENS, "r", max_tokens=2, stream=True) is None
