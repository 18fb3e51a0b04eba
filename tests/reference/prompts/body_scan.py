"""The naive model of the scan of a body, kvmesh/native/bodies/scan.c and scan_tokens.c.

The compiled scan passes over a body once and takes the byte tokenizer's ids from where they stand.
It accepts only what the strict parser does (`core.chat.inference`), with the same values: of a key
that comes twice the last counts, as for the engines. What is unusual (escapes in keys, nesting
beyond `MOST_DEPTH`, numbers with exponents among the messages, media, the fields `kvmesh` and
`nvext`, forms of a prompt other than `prompt_form.PLAIN`) it leaves to that parser, which also says
what is wrong with a body.
"""

from typing import Final, NamedTuple

import msgspec

from kvmesh import _native
from kvmesh.bounds import UNREADABLE
from kvmesh.core.chat.chat import ChatInput, JsonObject
from kvmesh.core.chat.inference import InferenceRequest, chat_fields, decode_request
from kvmesh.core.chat.prompt_form import is_given, is_set
from kvmesh.core.prompts.byte_tokenizer import ByteTokenizer
from kvmesh.errors import RequestError

MOST_DEPTH: Final = 64
"""Nesting that the compiled scan follows: `SCAN_DEPTH` in kvmesh/native/bodies/scan.h."""

_tokenizer: Final = ByteTokenizer()
_messages: Final = msgspec.json.Decoder(list[JsonObject])
_PLAIN: Final = {"role", "content"}


class Scanned(NamedTuple):
    """The fields of a body. Those of type bytes are JSON as it stands there; None: null or absent.

    `limit` is the most tokens of one answer, `urgency` the engine's `priority`, larger first.
    `prompt` is a completion's if it is one string. `messages` are a list of one object or more.
    """

    model: str | None
    stream: bool
    limit: int | None
    choices: int
    urgency: int
    user: str | None
    cache_salt: str | None
    lora_path: str | None
    prompt_cache_key: str | None
    messages: bytes | None
    message_count: int
    prompt: str | None
    prompt_value: bytes | None
    input: bytes | None
    input_ids: bytes | None
    system: bytes | None
    instructions: bytes | None
    tools: bytes | None
    documents: bytes | None
    tool_choice: bytes | None
    chat_template_kwargs: bytes | None
    reasoning_effort: bytes | None
    add_generation_prompt: bytes | None
    continue_final_message: bytes | None


def compiled_scan(body: bytes) -> _native.Scanned | None:
    """Return what the compiled scan finds of a chat, or else of a completion."""
    return _native.scan(body, True) or _native.scan(body, False)


def agrees(body: bytes) -> bool:
    """Return whether the compiled scan left a body alone, or found what the naive one does."""
    kept = compiled_scan(body)
    if kept is None:
        return True
    read = scan_body(body)
    if read is None or read.choices > 1 or read.lora_path is not None:
        return False
    found = (kept.model, kept.streams, kept.limit, kept.urgency, kept.cache_key, kept.salt)
    expected = (
        *(read.model or "", read.stream, read.limit or 0, read.urgency),
        *(read.prompt_cache_key or "", read.cache_salt or ""),
    )
    is_chat = read.messages is not None
    pairs = kept.messages is None or (is_chat and kept.messages == scan_messages(body))
    bare = kept.messages is not None or not kept.bare
    return (
        found == expected and pairs and bare and kept.prompt == (None if is_chat else read.prompt)
    )


def scan_body(body: bytes) -> Scanned | None:
    """Return what routing reads of a chat, completion or any other body of the API; None for what
    the strict parser has to see: all that it refuses, the field `kvmesh`, and the unusual.
    """
    try:
        read = decode_request(body)
        key, messages = _raw(read.prompt_cache_key), _raw(read.messages)
        count = 0 if messages is None else len(_messages.decode(messages))
        prompt = _raw(read.prompt)
        text = prompt is not None and prompt.startswith(b'"')
        scanned = Scanned(
            model=read.model,
            stream=bool(read.stream),
            limit=read.output_limit,
            choices=read.choices,
            urgency=read.urgency,
            user=read.user,
            cache_salt=read.cache_salt,
            lora_path=read.lora_path if isinstance(read.lora_path, str) else None,
            prompt_cache_key=None if key is None else msgspec.json.decode(key, type=str),
            messages=messages,
            message_count=count,
            prompt=msgspec.json.decode(prompt, type=str) if prompt is not None and text else None,
            prompt_value=prompt,
            input=_raw(read.input),
            input_ids=_raw(read.input_ids),
            system=_raw(read.system),
            instructions=_raw(read.instructions),
            tools=_raw(read.tools),
            documents=_raw(read.documents),
            tool_choice=_raw(read.tool_choice),
            chat_template_kwargs=_raw(read.chat_template_kwargs),
            reasoning_effort=_raw(read.reasoning_effort),
            add_generation_prompt=bytes(read.add_generation_prompt) or None,
            continue_final_message=bytes(read.continue_final_message) or None,
        )
    except UNREADABLE:
        return None
    return None if _is_unusual(read, scanned) else scanned


def scan_tokens(body: bytes) -> bytes | None:
    """Return the byte tokenizer's ids of a body's chat, or else of its text prompt, as native u32s.

    None for what `scan_body` leaves, and for a chat that its tokenizer has to look at: media,
    fields of other types than a chat's. A chat's `input_ids` are not looked at.
    """
    scanned = scan_body(body)
    if scanned is None:
        return None
    if scanned.messages is None:
        prompt = scanned.prompt
        return (
            None if prompt is None else _tokenizer.encode(prompt, add_special_tokens=True).tobytes()
        )
    try:
        chat = ChatInput.of(chat_fields(_messages.decode(scanned.messages), decode_request(body)))
    except RequestError:
        return None
    return None if chat.truncated else _tokenizer.encode_chat(chat).tobytes()


def scan_messages(body: bytes) -> list[tuple[str, str]] | None:
    """Return (role, content) of each message; None unless all have just these, both strings.

    None, too, for what `scan_body` leaves and for a body without a chat.
    """
    scanned = scan_body(body)
    if scanned is None or scanned.messages is None:
        return None
    pairs: list[tuple[str, str]] = []
    for message in _messages.decode(scanned.messages):
        role, content = message.get("role"), message.get("content")
        if message.keys() != _PLAIN or not isinstance(role, str) or not isinstance(content, str):
            return None
        pairs.append((role, content))
    return pairs


def _raw(value: msgspec.Raw) -> bytes | None:
    raw = bytes(value)
    return None if raw in {b"", b"null"} else raw


def _is_unusual(read: InferenceRequest, scanned: Scanned) -> bool:
    limits = read.max_completion_tokens, read.max_output_tokens, read.max_tokens
    given = (
        *(read.prompt_logprobs, read.truncate_prompt_tokens, read.add_special_tokens),
        read.previous_response_id,
    )
    wished = read.echo, read.best_of, read.use_beam_search, read.prompt_embeds, read.chat_template
    return (
        read.kvmesh is not None
        or is_given(read.nvext)
        or any(map(is_given, given))
        or any(map(is_set, wished))
        or isinstance(read.lora_path, list)
        or bool(read.messages and not scanned.message_count)
        or (read.n is not None and read.n < 1)
        or any(limit is not None and limit < 0 for limit in limits)
    )
