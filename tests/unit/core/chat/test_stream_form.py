"""What may be done for a stream whose engine is lost, by its request."""

import json

import pytest

from kvmesh.core.chat.stream_form import (
    GREEDY,
    REPEATED,
    SAMPLED,
    StreamForm,
    asks_ids,
    form_of,
    unmarked,
    with_ids,
    without_ids,
    without_prompt,
)

CHAT: dict[str, object] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hello"}],
    "stream": True,
    "max_tokens": 9,
}


def chat(**fields: object) -> StreamForm:
    return form_of(json.dumps(CHAT | fields).encode(), "chat")


def completion(**fields: object) -> StreamForm:
    body = {"model": "m", "prompt": "hello", "stream": True} | fields
    return form_of(json.dumps(body).encode(), "completions")


def test_a_plain_chat_goes_on_from_its_token_ids() -> None:
    assert chat(temperature=0) == GREEDY == StreamForm("exact", by_ids=True, again=True)
    assert chat(temperature=0.0, top_p=1, seed=7, stop_token_ids=[3]) == GREEDY
    assert chat() == chat(temperature=0.7) == SAMPLED == StreamForm("continued", by_ids=True)
    assert (completion(temperature=0), completion(prompt=[1, 2, 3])) == (GREEDY, SAMPLED)


def test_what_the_engine_parses_or_looks_back_for_is_only_asked_again() -> None:
    forms: tuple[dict[str, object], ...] = (
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"regex": "a+"}},
        {"stop": ["END"]},
        {"stop": "END"},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 1},
        {"a_field_of_next_year": 1},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
    )
    for fields in forms:
        assert chat(temperature=0, **fields) == REPEATED == StreamForm("exact", again=True)
        sampled = chat(temperature=1, **fields)
        assert (sampled.word, sampled.by_ids, sampled.again) == ("no", False, False)
        assert sampled.why.endswith(", sampled")


def test_what_is_empty_says_nothing() -> None:
    fields: dict[str, object] = {"tools": [], "stop": None, "presence_penalty": 0, "n": None}
    assert chat(temperature=0, response_format=None, **fields) == GREEDY
    assert chat(n=1, logprobs=False, echo=False, best_of=1) == SAMPLED


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"n": 2}, "n above 1"),
        ({"best_of": 3}, "best_of above 1"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"echo": True}, "echo"),
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
    ],
)
def test_what_goes_on_in_no_way(fields: dict[str, object], why: str) -> None:
    assert chat(temperature=0, **fields) == StreamForm("no", why=why)


def test_other_apis_and_bodies_go_on_in_no_way() -> None:
    assert form_of(b"{}", "messages") == StreamForm("no", why="the messages API")
    assert form_of(b"{}", "") == StreamForm("no", why="the  API")
    assert form_of(b"[", "chat").why == "a body that is not read"
    prompts: tuple[object, ...] = (["a", "b"], [[1], [2]], None, {})
    for prompt in prompts:
        assert completion(prompt=prompt).why == "several prompts"
    assert (completion(temperature="cold").word, GREEDY.in_words()) == ("continued", "exact")
    assert form_of(b"{}", "messages").in_words() == "no: the messages API"


def test_what_goes_on_may_leave_its_last_field_out() -> None:
    assert without_ids(b'{"model":"m","return_token_ids":true}') == b'{"model":"m"}'


def test_ids_are_asked_for_in_front_of_what_the_client_says() -> None:
    body = json.dumps(CHAT).encode()
    asked = with_ids(b" \n" + body)
    assert json.loads(asked) == {"return_token_ids": True} | CHAT
    assert asked.endswith(body[1:])
    assert asks_ids(asked)
    assert unmarked(asked) == b" \n" + body
    assert unmarked(body) is body
    assert not asks_ids(body)
    assert not asks_ids(b'{"user": "\\"return_token_ids\\"", "x": "return_token_ids"}')
    refused = json.dumps({"return_token_ids": False}).encode()
    assert not asks_ids(refused)
    assert not asks_ids(with_ids(refused))
    assert not asks_ids(b'["return_token_ids"')


def test_what_goes_on_by_ids_needs_no_prompt() -> None:
    chat_left = json.loads(without_prompt(json.dumps(CHAT | {"stop": ["a"]}).encode()))
    completion_left = json.loads(without_prompt(b'{"prompt": "long", "model": "m", "seed": 1e3}'))

    assert chat_left == CHAT | {"stop": ["a"], "messages": []}
    assert completion_left == {"prompt": "", "model": "m", "seed": 1000.0}
