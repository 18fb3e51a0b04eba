"""The expected texts are what pydantic writes for vLLM 0.32's response models."""

import json
from typing import Any

import pytest

from kvmesh_lab.mocker.vllm_responses import (
    DONE,
    ChatShape,
    ChoicePart,
    CompletionShape,
    Counts,
    Header,
    Shape,
)

HEADER = Header("id-1", 17, "mock", "vllm-0.32.0-ab")
LAST = ChoicePart(0, "x", "stop", "END", None)


def chat(*, with_usage: bool = False, fingerprint: bool = True) -> ChatShape:
    return ChatShape(HEADER, with_usage=with_usage, fingerprint_at_end=fingerprint)


def completion(*, with_usage: bool = False, fingerprint: bool = True) -> CompletionShape:
    return CompletionShape(HEADER, with_usage=with_usage, fingerprint_at_end=fingerprint)


def text(event: bytes) -> str:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    return event[6:-2].decode()


CHAT_HEAD = '{"id":"id-1","object":"chat.completion.chunk","created":17,"model":"mock",'
TEXT_HEAD = '{"id":"id-1","object":"text_completion","created":17,"model":"mock",'


def test_a_chat_stream_opens_with_the_role_of_each_choice() -> None:
    first, second, rest = chat().opening(2, None, Counts(5, 0)).split(b"\n\n")

    assert rest == b""
    assert text(first + b"\n\n") == (
        CHAT_HEAD + '"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
        '"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}'
    )
    assert b'"index":1' in second


def test_chat_deltas_and_the_last_chunk() -> None:
    assert text(chat().chunk(ChoicePart(0, "hi"), None, Counts(5, 1))) == (
        CHAT_HEAD + '"choices":[{"index":0,"delta":{"content":"hi"},"logprobs":null,'
        '"finish_reason":null,"token_ids":null}]}'
    )
    assert text(chat().chunk(LAST, None, Counts(5, 2))) == (
        CHAT_HEAD + '"choices":[{"index":0,"delta":{"content":"x"},"logprobs":null,'
        '"finish_reason":"stop","stop_reason":"END","token_ids":null}],'
        '"system_fingerprint":"vllm-0.32.0-ab"}'
    )
    assert "fingerprint" not in text(chat(fingerprint=False).chunk(LAST, None, Counts(5, 2)))


def test_token_ids_are_in_the_chunks_when_asked_for() -> None:
    opening = json.loads(text(chat().opening(1, [1, 2], Counts(2, 0))))
    assert opening["prompt_token_ids"] == [1, 2]
    chunk = json.loads(text(chat().chunk(ChoicePart(0, "x", token_ids=[7]), [1, 2], Counts(2, 1))))
    assert chunk["choices"][0]["token_ids"] == [7]
    assert "prompt_token_ids" not in chunk


def test_completion_chunks_have_all_fields() -> None:
    assert completion().opening(1, None, Counts(5, 0)) == b""
    assert text(completion().chunk(ChoicePart(1, "hi"), None, Counts(5, 1))) == (
        TEXT_HEAD + '"choices":[{"index":1,"text":"hi","logprobs":null,"finish_reason":null,'
        '"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}'
    )
    assert text(completion().chunk(LAST, None, Counts(5, 1))).endswith(
        '],"system_fingerprint":"vllm-0.32.0-ab"}'
    )


def usage(shape: Shape, counts: Counts) -> bytes:
    end = shape.end(counts, include_usage=True)
    assert end.endswith(DONE)
    assert shape.end(counts, include_usage=False) == DONE
    return end.removesuffix(DONE)


@pytest.mark.parametrize(("shape", "head"), [(chat(), CHAT_HEAD), (completion(), TEXT_HEAD)])
def test_the_usage_chunk_has_no_choices_and_no_nulls(shape: Shape, head: str) -> None:
    used = '"prompt_tokens":5,"total_tokens":8,"completion_tokens":3'

    assert text(usage(shape, Counts(5, 3, 4))) == (
        head + '"choices":[],"usage":{' + used + ',"prompt_tokens_details":{"cached_tokens":4}},'
        '"system_fingerprint":"vllm-0.32.0-ab"}'
    )
    assert "details" not in text(usage(shape, Counts(5, 3)))


def test_continuous_usage_is_in_every_chunk() -> None:
    counts = Counts(5, 3)
    plain = {"prompt_tokens": 5, "total_tokens": 8, "completion_tokens": 3}
    chunks: list[Any] = [
        json.loads(text(chat(with_usage=True).opening(1, None, counts))),
        json.loads(text(chat(with_usage=True).chunk(LAST, None, counts))),
        json.loads(text(completion(with_usage=True).chunk(LAST, None, counts))),
    ]

    assert [chunk["usage"] for chunk in chunks] == [
        {**plain, "completion_tokens_details": None},
        {**plain, "completion_tokens_details": None},
        plain,
    ]


def test_a_whole_chat_completion_has_every_field() -> None:
    body = chat().whole([LAST], None, Counts(5, 3, 4)).decode()

    assert body == (
        '{"id":"id-1","object":"chat.completion","created":17,"model":"mock","choices":[{"index":0,'
        '"message":{"role":"assistant","content":"x","refusal":null,"annotations":null,'
        '"audio":null,"function_call":null,"reasoning":null},"logprobs":null,'
        '"finish_reason":"stop","stop_reason":"END","token_ids":null,"routed_experts":null}],'
        '"service_tier":null,"system_fingerprint":"vllm-0.32.0-ab","usage":{"prompt_tokens":5,'
        '"total_tokens":8,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4,'
        '"created_cache_tokens":null,"multimodal_tokens":null},"completion_tokens_details":null},'
        '"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,'
        '"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}'
    )


def test_a_whole_completion_has_every_field() -> None:
    body = completion().whole([LAST], [[1, 2]], Counts(5, 3)).decode()

    assert body == (
        '{"id":"id-1","object":"text_completion","created":17,"model":"mock","choices":[{"index":0,'
        '"text":"x","logprobs":null,"finish_reason":"stop","stop_reason":"END","token_ids":null,'
        '"prompt_logprobs":null,"prompt_token_ids":[1,2],"routed_experts":null}],'
        '"service_tier":null,"system_fingerprint":"vllm-0.32.0-ab","usage":{"prompt_tokens":5,'
        '"total_tokens":8,"completion_tokens":3,"prompt_tokens_details":null,'
        '"completion_tokens_details":null},"kv_transfer_params":null,"ec_transfer_params":null,'
        '"metrics":null}'
    )
    assert json.loads(chat().whole([LAST], [[1]], Counts(1, 1)))["prompt_token_ids"] == [1]
    assert json.loads(completion().whole([LAST], None, Counts(1, 1)))["choices"]
