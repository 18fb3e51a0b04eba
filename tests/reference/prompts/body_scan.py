"""The naive model of the scan of a body, kvmesh/native/bodies/scan.c and scan_tokens.c: the strict
parser (`core.chat.inference`), then the byte tokenizer.

The compiled scan passes over a body once. It accepts only what the strict parser does, with the
same values; what is unusual it leaves to that parser.
"""

from typing import Any, Final

import msgspec

from kvmesh import _native
from kvmesh.bounds import UNREADABLE
from kvmesh.core.chat.chat import ChatInput, JsonObject
from kvmesh.core.chat.inference import InferenceRequest, chat_fields, decode_request
from kvmesh.core.chat.prompt_form import is_given, is_set
from kvmesh.core.chat.retention import retention_s
from kvmesh.core.prompts.byte_tokenizer import ByteTokenizer
from kvmesh.errors import RequestError

_tokenizer: Final = ByteTokenizer()


def compiled_scan(body: bytes) -> _native.Scanned | None:
    """Return what the compiled scan finds of a chat, or else of a completion."""
    return _native.scan(body, True) or _native.scan(body, False)


def agrees(body: bytes) -> bool:
    """Return whether the compiled scan left a body alone, or found what the naive one does."""
    kept, read = compiled_scan(body), scan_body(body)
    if kept is None:
        return True
    if read is None or read.choices > 1 or read.lora_path is not None:
        return False
    prompt, messages = _decoded(read.prompt), _decoded(read.messages)
    pairs = _pairs(messages or [])
    if messages is None:
        same = kept.messages is None and kept.prompt == (
            prompt if isinstance(prompt, str) else None
        )
    else:
        same = kept.prompt is None and kept.messages in (None, pairs)
    key = _decoded(read.prompt_cache_key)
    return (
        same
        and (kept.messages is not None or not kept.bare)
        and (kept.model, kept.streams) == (read.model or "", bool(read.stream))
        and (kept.limit, kept.urgency) == (read.output_limit or 0, read.urgency)
        and (kept.cache_key, kept.salt) == (key or "", read.cache_salt or "")
        and kept.keep_s == retention_s(read.prompt_cache_retention)
        and kept.asks == bool(key or kept.keep_s or read.urgency)
    )


def scan_body(body: bytes) -> InferenceRequest | None:
    """Return a body as the strict parser reads it; None for what it refuses, the field `kvmesh`,
    and the unusual.
    """
    try:
        read = decode_request(body)
        key, messages = _decoded(read.prompt_cache_key), _decoded(read.messages)
        msgspec.convert((key, messages), tuple[str | None, list[JsonObject] | None])
    except UNREADABLE:
        return None
    limits = read.max_completion_tokens, read.max_output_tokens, read.max_tokens
    given = (
        *(read.prompt_logprobs, read.truncate_prompt_tokens, read.add_special_tokens),
        *(read.previous_response_id, read.nvext, read.extra_key),
    )
    wished = read.echo, read.best_of, read.use_beam_search, read.prompt_embeds, read.chat_template
    unusual = (
        read.kvmesh is not None
        or any(map(is_given, given))
        or any(map(is_set, wished))
        or isinstance(read.lora_path, list)
        or messages == []
        or (read.n is not None and read.n < 1)
        or any(limit is not None and limit < 0 for limit in limits)
    )
    return None if unusual else read


def scan_tokens(body: bytes) -> bytes | None:
    """Return the byte tokenizer's ids of a body's chat, or else of its text prompt, as native u32s.

    None for what `scan_body` leaves, and for a chat that its tokenizer has to look at: media,
    fields of other types than a chat's. A chat's `input_ids` are not looked at.
    """
    read = scan_body(body)
    if read is None:
        return None
    prompt, messages = _decoded(read.prompt), _decoded(read.messages)
    if messages is None:
        text = prompt if isinstance(prompt, str) else None
        ids = None if text is None else _tokenizer.encode(text, add_special_tokens=True)
        return None if ids is None else ids.tobytes()
    try:
        chat = ChatInput.of(chat_fields(messages, read))
    except RequestError:
        return None
    return None if chat.truncated else _tokenizer.encode_chat(chat).tobytes()


def _decoded(value: msgspec.Raw) -> Any:
    """Return what stands there; None where nothing does."""
    return msgspec.json.decode(value) if bytes(value) else None


def _pairs(messages: list[JsonObject]) -> list[tuple[str, str]] | None:
    """Return (role, content) of each message; None unless all have just these, both strings."""
    try:
        return [
            (msgspec.convert(one["role"], str), msgspec.convert(one["content"], str))
            for one in messages
            if len(one) == 2 or one["both alone"]
        ]
    except (KeyError, msgspec.ValidationError):
        return None
