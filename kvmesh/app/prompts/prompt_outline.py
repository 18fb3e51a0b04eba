"""A prompt's length and beginning, as bucket rules and prefix policies see it: no tokenizer."""

import msgspec

from kvmesh.core.buckets.spill import DEPTHS
from kvmesh.core.chat.chat import content_text
from kvmesh.transport.http.openai import ApiEndpoint, InferenceRequest, first_prompt

_KEPT_CHARS = DEPTHS[-1]


class _Turn(msgspec.Struct):
    content: object = None


_chats = msgspec.json.Decoder(str | list[_Turn])
_parts = msgspec.json.Decoder(object)


def prompt_outline(endpoint: ApiEndpoint, parsed: InferenceRequest) -> tuple[int, str]:
    """Return a prompt's length and start, in characters; (0, "") for one that cannot be read."""
    try:
        texts = _texts(endpoint, parsed)
    except msgspec.MsgspecError:
        return 0, ""
    return sum(map(len, texts)), "\n".join(texts)[:_KEPT_CHARS]


def _texts(endpoint: ApiEndpoint, parsed: InferenceRequest) -> list[str]:
    match endpoint.kind:
        case "chat":
            return _chat(parsed.messages)
        case "messages":
            return [*_head(parsed.system), *_chat(parsed.messages)]
        case "responses":
            return [*_head(parsed.instructions), *_chat(parsed.input)]
        case _:
            first = first_prompt(parsed.prompt if endpoint.prompt == "prompt" else parsed.input)
            return [first if isinstance(first, str) else ",".join(map(str, first))]


def _chat(raw: msgspec.Raw) -> list[str]:
    turns = _chats.decode(raw)
    if isinstance(turns, str):
        return [turns]
    return [content_text(turn.content) for turn in turns]


def _head(raw: msgspec.Raw) -> list[str]:
    text = content_text(_parts.decode(raw)) if bytes(raw) not in {b"", b"null"} else ""
    return [text] if text else []
