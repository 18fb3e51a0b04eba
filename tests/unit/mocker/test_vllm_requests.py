from typing import Any

import msgspec
import pytest

from kvmesh.errors import RequestError
from kvmesh_lab.mocker.model.answer import StopRules
from kvmesh_lab.mocker.vllm_requests import (
    GenerationRequest,
    error_body,
    output_limit,
    parse_chat,
    parse_completion,
)

MESSAGES = [{"role": "user", "content": "hello"}]


def chat(**fields: Any) -> GenerationRequest:
    return parse_chat(msgspec.json.encode({"model": "m", "messages": MESSAGES} | fields))


def completion(**fields: Any) -> GenerationRequest:
    return parse_completion(msgspec.json.encode({"model": "m"} | fields))


def test_a_plain_chat_has_vllms_defaults() -> None:
    request = chat()

    assert request.kind == "chat"
    assert request.chat is not None
    assert request.chat.messages == MESSAGES
    assert request.max_tokens is None
    assert (request.choices, request.stream, request.include_usage) == (1, False, False)


def test_max_completion_tokens_wins_over_max_tokens() -> None:
    assert chat(max_tokens=5, max_completion_tokens=7).max_tokens == 7
    assert chat(max_tokens=5).max_tokens == 5


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ("a",)),
        ([1, 2], ([1, 2],)),
        (["a", "b"], ("a", "b")),
        ([[1, 2], [3]], ([1, 2], [3])),
        (["a", [3]], ("a", [3])),
    ],
)
def test_prompts_are_texts_ids_or_lists_of_them(prompt: object, prompts: object) -> None:
    assert completion(prompt=prompt).prompts == prompts


def test_sampling_rules_are_taken_over() -> None:
    request = chat(
        stop="x", min_tokens=3, ignore_eos=True, stop_token_ids=[9], include_stop_str_in_output=True
    )

    assert request.limited_rules(12) == StopRules(12, 3, True, ("x",), (9,), True)
    assert chat(stop=["a", "b"]).rules.stop == ("a", "b")


def test_stream_and_cache_options_are_taken_over() -> None:
    request = chat(
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        cache_salt="tenant",
        n=3,
        seed=5,
        return_token_ids=True,
        truncate_prompt_tokens=8,
        request_id="mine",
        vllm_xargs={"kv_cache_report_mode": "full", "session_id": "s"},
    )

    assert request.include_usage
    assert request.continuous_usage
    assert request.report_cached
    assert (request.cache_salt, request.session_id, request.request_id) == ("tenant", "s", "mine")
    assert (request.choices, request.seed, request.keep_last_tokens) == (3, 5, 8)
    assert chat(session_id="mine", vllm_xargs={"session_id": 3}).session_id == "mine"
    assert chat(vllm_xargs={"session_id": 3}).session_id is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True}, "echo"),
        ({"logprobs": 0}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"suffix": "x"}, "suffix"),
        ({"prompt_embeds": "x"}, "prompt_embeds"),
        ({"n": 0}, "n"),
        ({"n": 65}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5, "min_tokens": 6}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"stop": [""]}, "stop"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
    ],
)
def test_what_is_wrong_or_cannot_be_simulated_is_refused_by_name(
    fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        completion(**{"prompt": "x", **fields})

    assert caught.value.param == param
    assert caught.value.status == 400


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b'{"messages": 1}'])
def test_a_body_that_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError):
        parse_chat(body)


def test_the_answer_may_fill_what_the_prompt_leaves() -> None:
    assert output_limit(chat(), 90, 100) == 10
    assert output_limit(chat(max_tokens=5), 90, 100) == 5
    assert output_limit(chat(max_tokens=50), 90, 100) == 10


@pytest.mark.parametrize(
    ("max_tokens", "prompt", "message"),
    [
        (101, 5, "cannot be greater than max_model_len=100"),
        (None, 101, "maximum context length is 100 tokens"),
        (None, 100, "max_tokens must be at least 1, got 0"),
    ],
)
def test_what_does_not_fit_the_context_is_refused_in_vllms_words(
    max_tokens: int | None, prompt: int, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        output_limit(chat(max_tokens=max_tokens), prompt, 100)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RequestError("x"), "BadRequestError"),
        (RequestError("x", param="n"), "BadRequestError"),
        (RequestError("x", status=404, param="model"), "NotFoundError"),
        (RequestError("x", status=404), "Not Found"),
        (RequestError("x", status=405), "Method Not Allowed"),
    ],
)
def test_refusals_have_vllms_shape(error: RequestError, kind: str) -> None:
    assert msgspec.json.decode(error_body(error)) == {
        "error": {"message": "x", "type": kind, "param": error.param, "code": error.status}
    }
