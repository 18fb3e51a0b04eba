"""Answers of the pretend vLLM to /v1/responses, /v1/messages and /v1/embeddings.

The fields that clients' libraries read, in the order of OpenAI's and Anthropic's events; unlike
`responses` not every null of vLLM's.
"""

import base64
import hashlib
from array import array
from collections.abc import Sequence
from typing import Final

import msgspec

from kvmesh_lab.mocker.vllm_responses import ChoicePart, Counts, Header, Json

DIMENSIONS: Final = 64
"""Length of an embedding."""

_STOPS: Final = {"stop": "end_turn", "length": "max_tokens", "abort": "end_turn"}
_encode = msgspec.json.Encoder().encode


def _event(name: str, data: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode({"type": name} | data))


class ResponsesShape:
    """/v1/responses: one message of one text, whole or as numbered events. One answer's state."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._item = f"msg_{header.response_id}"
        self._text = ""
        self._reason = ""
        self._number = 0

    def opening(self, choices: int, prompt_ids: Sequence[int] | None, counts: Counts) -> bytes:
        """Return all that comes before the first token."""
        del choices, prompt_ids, counts
        begun: Json = {"response": self._response("in_progress", [], None)}
        part = {"part": _text_part("")} | self._place()
        item = self._message("in_progress", [])
        return b"".join(
            (
                self._numbered("response.created", begun),
                self._numbered("response.in_progress", begun),
                self._numbered("response.output_item.added", {"output_index": 0, "item": item}),
                self._numbered("response.content_part.added", part),
            )
        )

    def chunk(self, part: ChoicePart, prompt_ids: Sequence[int] | None, counts: Counts) -> bytes:
        """Return a text delta."""
        del prompt_ids, counts
        self._note(part)
        data: Json = {"delta": part.text, "logprobs": []}
        return self._numbered("response.output_text.delta", data | self._place())

    def end(self, counts: Counts, *, include_usage: bool) -> bytes:
        """Return the events that close text, part, item and response; the last has the usage."""
        del include_usage
        place = self._place()
        text, whole = _text_part(self._text), self._whole(counts)
        output: Json = {"output_index": 0, "item": self._message("completed", [text])}
        done: Json = {"text": self._text, "logprobs": []}
        return b"".join(
            (
                self._numbered("response.output_text.done", done | place),
                self._numbered("response.content_part.done", {"part": text} | place),
                self._numbered("response.output_item.done", output),
                self._numbered(f"response.{whole['status']}", {"response": whole}),
            )
        )

    def whole(
        self,
        parts: Sequence[ChoicePart],
        prompt_ids: Sequence[Sequence[int]] | None,
        counts: Counts,
    ) -> bytes:
        """Return the response object."""
        del prompt_ids
        self._note(parts[0])
        return _encode(self._whole(counts))

    def _note(self, part: ChoicePart) -> None:
        self._text += part.text
        self._reason = part.finish_reason or ""

    def _numbered(self, name: str, data: Json) -> bytes:
        number, self._number = self._number, self._number + 1
        return _event(name, {"sequence_number": number} | data)

    def _place(self) -> Json:
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    def _message(self, status: str, content: list[Json]) -> Json:
        return {
            "id": self._item,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _whole(self, counts: Counts) -> Json:
        status = "incomplete" if self._reason == "length" else "completed"
        usage: Json = {
            "input_tokens": counts.prompt,
            "input_tokens_details": {"cached_tokens": counts.cached or 0, "cache_write_tokens": 0},
            "output_tokens": counts.completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts.prompt + counts.completion,
        }
        message = self._message(status, [_text_part(self._text)])
        return self._response(status, [message], usage)

    def _response(self, status: str, output: list[Json], usage: Json | None) -> Json:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self._header.response_id,
            "object": "response",
            "created_at": self._header.created,
            "model": self._header.model,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "instructions": None,
            "metadata": None,
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": usage,
        }


def _text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}


class MessagesShape:
    """/v1/messages (Anthropic): one text block, whole or as events. One answer's state."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._last = ChoicePart(0, "")

    def opening(self, choices: int, prompt_ids: Sequence[int] | None, counts: Counts) -> bytes:
        """Return what comes before the first token."""
        del choices, prompt_ids
        message: Json = self._message([], None, counts)
        block: Json = {"index": 0, "content_block": {"type": "text", "text": ""}}
        return _event("message_start", {"message": message}) + _event("content_block_start", block)

    def chunk(self, part: ChoicePart, prompt_ids: Sequence[int] | None, counts: Counts) -> bytes:
        """Return a text delta."""
        del prompt_ids, counts
        self._last = part
        delta: Json = {"type": "text_delta", "text": part.text}
        return _event("content_block_delta", {"index": 0, "delta": delta})

    def end(self, counts: Counts, *, include_usage: bool) -> bytes:
        """Return why it stopped, the usage, and the end."""
        del include_usage
        delta: Json = {"delta": _stop(self._last), "usage": _usage(counts)}
        return (
            _event("content_block_stop", {"index": 0})
            + _event("message_delta", delta)
            + _event("message_stop", {})
        )

    def whole(
        self,
        parts: Sequence[ChoicePart],
        prompt_ids: Sequence[Sequence[int]] | None,
        counts: Counts,
    ) -> bytes:
        """Return the message."""
        del prompt_ids
        part = parts[0]
        return _encode(self._message([{"type": "text", "text": part.text}], part, counts))

    def _message(self, content: list[Json], last: ChoicePart | None, counts: Counts) -> Json:
        head: Json = {
            "id": self._header.response_id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._header.model,
        }
        return head | _stop(last) | {"usage": _usage(counts)}


def _stop(part: ChoicePart | None) -> Json:
    if part is None or part.finish_reason is None:
        return {"stop_reason": None, "stop_sequence": None}
    if isinstance(part.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": part.stop_reason}
    return {"stop_reason": _STOPS[part.finish_reason], "stop_sequence": None}


def _usage(counts: Counts) -> Json:
    """Return the usage as Anthropic counts it: what was cached is not among the input tokens."""
    cached = counts.cached or 0
    return {
        "input_tokens": counts.prompt - cached,
        "cache_read_input_tokens": cached,
        "output_tokens": counts.completion,
    }


class EmbeddingsShape:
    """/v1/embeddings: a unit vector made of each prompt's tokens, the same for the same prompt."""

    def __init__(self, header: Header, prompts: "Sequence[array[int]]", *, as_base64: bool) -> None:
        self._header = header
        self._prompts = prompts
        self._as_base64 = as_base64

    def opening(self, choices: int, prompt_ids: Sequence[int] | None, counts: Counts) -> bytes:
        """Return nothing: embeddings do not stream."""
        del choices, prompt_ids, counts
        return b""

    def chunk(self, part: ChoicePart, prompt_ids: Sequence[int] | None, counts: Counts) -> bytes:
        """Return nothing."""
        del part, prompt_ids, counts
        return b""

    def end(self, counts: Counts, *, include_usage: bool) -> bytes:
        """Return nothing."""
        del counts, include_usage
        return b""

    def whole(
        self,
        parts: Sequence[ChoicePart],
        prompt_ids: Sequence[Sequence[int]] | None,
        counts: Counts,
    ) -> bytes:
        """Return one embedding a prompt."""
        del parts, prompt_ids
        return _encode(
            {
                "id": self._header.response_id,
                "object": "list",
                "created": self._header.created,
                "model": self._header.model,
                "data": [
                    {"index": index, "object": "embedding", "embedding": self._vector(prompt)}
                    for index, prompt in enumerate(self._prompts)
                ],
                "usage": {
                    "prompt_tokens": counts.prompt,
                    "total_tokens": counts.prompt,
                    "completion_tokens": 0,
                    "prompt_tokens_details": None,
                },
            }
        )

    def _vector(self, prompt: "array[int]") -> list[float] | str:
        raw = hashlib.shake_128(prompt.tobytes()).digest(DIMENSIONS)
        values = [byte - 127.5 for byte in raw]
        length = sum(value * value for value in values) ** 0.5
        vector = array("f", [value / length for value in values])
        return base64.b64encode(vector.tobytes()).decode() if self._as_base64 else vector.tolist()
