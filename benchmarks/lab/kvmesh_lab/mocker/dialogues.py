"""What the pretend vLLM reads of /v1/responses, /v1/messages and /v1/embeddings.

Source: vllm/entrypoints/{openai/responses,anthropic,openai/embeddings}/protocol.py (0.32).
"""

from typing import Literal

import msgspec

from kvmesh.core.chat.inference import decode_request
from kvmesh.core.chat.media import named_body
from kvmesh.core.engines.registry import engine_of
from kvmesh.errors import RequestError
from kvmesh_lab.mocker.media import Noted
from kvmesh_lab.mocker.vllm_requests import (
    GenerationBody,
    GenerationRequest,
    build_request,
    decode_body,
    read_prompts,
)

_ABSENT = msgspec.Raw(b"")


class _ResponsesBody(GenerationBody):
    input: msgspec.Raw = _ABSENT
    instructions: msgspec.Raw = _ABSENT
    tools: msgspec.Raw = _ABSENT
    max_output_tokens: int | None = None


class _MessagesBody(GenerationBody):
    messages: msgspec.Raw = _ABSENT
    system: msgspec.Raw = _ABSENT
    tools: msgspec.Raw = _ABSENT
    stop_sequences: list[str] | None = None


class _EmbeddingsBody(GenerationBody):
    input: str | list[str | int | list[int]] | None = None
    encoding_format: Literal["float", "base64"] = "float"


_responses = msgspec.json.Decoder(_ResponsesBody)
_messages = msgspec.json.Decoder(_MessagesBody)
_embeddings = msgspec.json.Decoder(_EmbeddingsBody)


def parse_responses(body: bytes, *, sees: bool = False) -> GenerationRequest:
    """Return the request of the responses API in `body`. Raises `RequestError`."""
    parsed = decode_body(_responses, body)
    if not bytes(parsed.input):
        raise RequestError("input is missing", param="input")
    parsed.stream_options = None
    noted = Noted(sees=sees)
    chat = engine_of("vllm").turns(decode_request(body), "responses", noted.keep)
    made = build_request("responses", parsed, parsed.max_output_tokens, chat, ())
    return msgspec.structs.replace(made, media=tuple(noted.media))


def parse_messages(body: bytes, *, sees: bool = False) -> GenerationRequest:
    """Return the request in Anthropic's form in `body`. Raises `RequestError`."""
    parsed = decode_body(_messages, body)
    if not bytes(parsed.messages):
        raise RequestError("messages is missing", param="messages")
    if parsed.max_tokens is None:
        raise RequestError("max_tokens is missing", param="max_tokens")
    parsed.stop = parsed.stop_sequences
    named = named_body(body, "", "messages")
    noted = Noted(sees=sees, sent=() if named is None else named.sent)
    read = decode_request(body if named is None else named.read)
    chat = engine_of("vllm").turns(read, "messages", noted.keep)
    made = build_request("messages", parsed, parsed.max_tokens, chat, ())
    return msgspec.structs.replace(made, media=tuple(noted.media))


def parse_embeddings(body: bytes) -> GenerationRequest:
    """Return the embedding request in `body`: a prefill each, of which one token is asked.

    Raises `RequestError`.
    """
    parsed = decode_body(_embeddings, body)
    if not parsed.input:
        raise RequestError("input is missing or empty", param="input")
    parsed.stream = False
    prompts = read_prompts(parsed.input, "input")
    kind: Literal["embedding", "embedding-base64"] = (
        "embedding" if parsed.encoding_format == "float" else "embedding-base64"
    )
    return build_request(kind, parsed, 1, None, prompts)
