"""Answers read as clients' libraries read them: by OpenAI's own types, and by hand."""

import base64
import json
from array import array
from typing import Any

import pytest
from openai.types import CreateEmbeddingResponse
from openai.types.responses import Response

from kvmesh_lab.mocker.dialogue_shapes import (
    DIMENSIONS,
    EmbeddingsShape,
    MessagesShape,
    ResponsesShape,
)
from kvmesh_lab.mocker.model.answer import StopRules
from kvmesh_lab.mocker.vllm_requests import GenerationRequest, Kind
from kvmesh_lab.mocker.vllm_responses import ChatShape, ChoicePart, CompletionShape, Counts, Header
from kvmesh_lab.mocker.vllm_shapes import ID_PREFIXES, shape_of

HEADER = Header("id-1", 17, "mock", "vllm-0.32.0-ab")
COUNTS = Counts(10, 2, 8)
PARTS = [ChoicePart(0, "Hel"), ChoicePart(0, "lo", "stop")]


def stream(shape: ResponsesShape | MessagesShape, parts: list[ChoicePart]) -> list[tuple[str, Any]]:
    data = shape.opening(1, None, Counts(10, 0))
    data += b"".join(shape.chunk(part, None, COUNTS) for part in parts)
    data += shape.end(COUNTS, include_usage=False)
    events = [event.split("\ndata: ") for event in data.decode().removesuffix("\n\n").split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(text)) for name, text in events]


def test_a_response_streams_as_openais_numbered_events() -> None:
    events = stream(ResponsesShape(HEADER), PARTS)

    assert [name for name, _ in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert all(data["type"] == name for name, data in events)
    assert [data["sequence_number"] for _, data in events] == list(range(10))
    assert events[6][1]["text"] == "Hello"
    last = Response.construct(**events[-1][1]["response"])
    assert last.output_text == "Hello"
    assert last.usage is not None
    assert last.usage.input_tokens_details.cached_tokens == 8
    assert (last.usage.input_tokens, last.usage.output_tokens, last.usage.total_tokens) == (
        10,
        2,
        12,
    )


@pytest.mark.parametrize(("reason", "status"), [("stop", "completed"), ("length", "incomplete")])
def test_a_whole_response_says_whether_it_was_cut(reason: Any, status: str) -> None:
    part = ChoicePart(0, "Hello", reason)

    body = ResponsesShape(HEADER).whole([part], None, Counts(10, 2))
    streamed = stream(ResponsesShape(HEADER), [part])

    whole = Response.construct(**json.loads(body))
    assert (whole.id, whole.status, whole.output_text) == ("id-1", status, "Hello")
    assert (whole.incomplete_details is not None) == (reason == "length")
    assert streamed[-1][0] == f"response.{status}"


def test_a_message_streams_as_anthropics_events() -> None:
    events = stream(MessagesShape(HEADER), PARTS)

    assert [name for name, _ in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[0][1]["message"]["stop_reason"] is None
    assert events[5][1]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[5][1]["usage"] == {
        "input_tokens": 2,
        "cache_read_input_tokens": 8,
        "output_tokens": 2,
    }


def test_a_whole_message_says_why_it_stopped() -> None:
    cut = json.loads(MessagesShape(HEADER).whole([ChoicePart(0, "a", "length")], None, COUNTS))
    stopped = json.loads(
        MessagesShape(HEADER).whole([ChoicePart(0, "a", "stop", ".")], None, COUNTS)
    )

    assert cut["content"] == [{"type": "text", "text": "a"}]
    assert (cut["stop_reason"], cut["role"], cut["model"]) == ("max_tokens", "assistant", "mock")
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", ".")


def test_equal_prompts_have_equal_embeddings_of_length_one() -> None:
    prompts = [array("I", [1, 2]), array("I", [1, 2]), array("I", [3])]
    floats, packed = (
        EmbeddingsShape(HEADER, prompts, as_base64=flag).whole([], None, Counts(5, 3, 2))
        for flag in (False, True)
    )

    read = CreateEmbeddingResponse.construct(**json.loads(floats))
    first, second, third = (one.embedding for one in read.data)
    assert first == second != third
    assert len(first) == DIMENSIONS
    assert sum(value * value for value in first) == pytest.approx(1.0, abs=1e-5)
    assert (read.usage.prompt_tokens, read.usage.total_tokens) == (5, 5)
    bits = base64.b64decode(json.loads(packed)["data"][2]["embedding"])
    assert array("f", bits).tolist() == third


def test_embeddings_do_not_stream() -> None:
    shape = EmbeddingsShape(HEADER, [], as_base64=False)

    assert shape.opening(1, None, COUNTS) == b""
    assert shape.chunk(PARTS[0], None, COUNTS) == b""
    assert shape.end(COUNTS, include_usage=True) == b""


def test_every_kind_of_request_has_its_shape_and_prefix() -> None:
    shapes: dict[Kind, type] = {
        "chat": ChatShape,
        "completion": CompletionShape,
        "responses": ResponsesShape,
        "messages": MessagesShape,
        "embedding": EmbeddingsShape,
        "embedding-base64": EmbeddingsShape,
    }

    for kind, expected in shapes.items():
        request = GenerationRequest(kind, "m", 1, StopRules(1))
        assert type(shape_of(request, HEADER, [])) is expected
        assert ID_PREFIXES[kind]
