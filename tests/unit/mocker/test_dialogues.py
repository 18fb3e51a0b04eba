from typing import Any

import msgspec
import pytest

from kvmesh.errors import RequestError
from kvmesh_lab.mocker.dialogues import parse_embeddings, parse_messages, parse_responses
from kvmesh_lab.mocker.vllm_requests import GenerationRequest

TURNS = [{"role": "user", "content": "hello"}]


def responses(**fields: Any) -> GenerationRequest:
    return parse_responses(msgspec.json.encode({"model": "m"} | fields))


def messages(**fields: Any) -> GenerationRequest:
    return parse_messages(msgspec.json.encode({"model": "m"} | fields))


def embeddings(**fields: Any) -> GenerationRequest:
    return parse_embeddings(msgspec.json.encode({"model": "m"} | fields))


def test_a_response_is_asked_for_by_a_text_or_turns() -> None:
    text = responses(input="hello", max_output_tokens=7, stream=True)
    turns = responses(input=TURNS, instructions="Be kind.", stream_options={"x": 1})

    assert text.chat is not None
    assert text.chat.messages == TURNS
    assert (text.kind, text.max_tokens, text.stream) == ("responses", 7, True)
    assert turns.chat is not None
    assert turns.chat.messages == [{"role": "system", "content": "Be kind."}, *TURNS]
    assert turns.max_tokens is None


def test_a_message_is_a_chat_with_its_system_in_front() -> None:
    tool = {"name": "t", "input_schema": {}}
    request = messages(
        messages=TURNS, system="Be kind.", max_tokens=9, stop_sequences=["."], tools=[tool]
    )

    assert request.chat is not None
    assert [one["role"] for one in request.chat.messages] == ["system", "user"]
    assert request.chat.tools is not None
    (shown,) = request.chat.tools
    assert shown["function"] == {
        "name": "t",
        "description": None,
        "parameters": {"type": "object"},
        "strict": None,
        "defer_loading": None,
    }
    assert (request.kind, request.max_tokens, request.rules.stop) == ("messages", 9, (".",))


def test_embeddings_are_prefills_of_texts_or_ids() -> None:
    assert embeddings(input="a").prompts == ("a",)
    assert embeddings(input=["a", "b"]).prompts == ("a", "b")
    assert embeddings(input=[[1, 2], [3]], stream=True).prompts == ([1, 2], [3])
    assert not embeddings(input="a", stream=True).stream
    assert embeddings(input="a").max_tokens == 1
    assert embeddings(input="a").kind == "embedding"
    assert embeddings(input="a", encoding_format="base64").kind == "embedding-base64"


@pytest.mark.parametrize(
    ("parse", "body", "param"),
    [
        (responses, {}, "input"),
        (responses, {"input": 3}, None),
        (responses, {"input": "x", "max_output_tokens": 0}, "max_tokens"),
        (messages, {"max_tokens": 3}, "messages"),
        (messages, {"messages": TURNS}, "max_tokens"),
        (messages, {"messages": [], "max_tokens": 3}, "messages"),
        (embeddings, {}, "input"),
        (embeddings, {"input": []}, "input"),
        (embeddings, {"input": [1, "a"]}, "input"),
        (embeddings, {"input": ["a"] * 65}, "input"),
        (embeddings, {"input": "a", "encoding_format": "hex"}, "encoding_format"),
    ],
)
def test_what_is_no_such_request_is_refused_by_field(
    parse: Any, body: dict[str, Any], param: str | None
) -> None:
    with pytest.raises(RequestError) as refused:
        parse(**body)

    assert refused.value.param == param
