"""A prompt's length, beginning and keys, as bucket rules and policies see it: no tokenizer."""

from collections.abc import Iterable
from typing import cast

import msgspec

from kvmesh._native import Scanned
from kvmesh.app.prompts.beginning import beginning_of
from kvmesh.core.buckets.beginnings import (
    DEPTHS,
    MOST_MESSAGES,
    NO_KEYS,
    PREFIX_CHARS,
    PromptKeys,
    chat_keys,
    key_seed,
    text_keys,
)
from kvmesh.core.chat.chat import JsonObject, content_parts, content_text, part_text
from kvmesh.core.chat.inference import InferenceRequest
from kvmesh.transport.http.openai import ApiEndpoint, first_prompt, is_chat_input

_KEPT_CHARS = DEPTHS[-1]
_CHARS_AN_ID = 6
"""Of token ids and their commas, about."""
_NOT_PROMPT = frozenset({"cache_control"})
"""Fields of a content part that move between turns: where a client wants a cache to end."""


class PromptOutline(msgspec.Struct, frozen=True, gc=False):
    """Length in characters, the first 16,384 of them, and of the opening, which ends with the
    first user message, the first 256.
    """

    chars: int = 0
    start: str = ""
    opening: str = ""
    keys: PromptKeys = NO_KEYS


class _Turn(msgspec.Struct):
    """A message, or an item of a Responses input: a call or its output has no content."""

    role: object = None
    content: object = None
    arguments: object = None
    output: object = None


_chats = msgspec.json.Decoder(str | list[_Turn])
_parts = msgspec.json.Decoder(object)


def prompt_outline(endpoint: ApiEndpoint, parsed: InferenceRequest) -> PromptOutline:
    """Return what a prompt looks like; an empty outline of one that cannot be read.

    Of a prompt longer than `MOST_READ_BYTES` the beginning is read, the rest counted by its bytes.
    Raises `RequestError` for a prompt that is neither text nor token ids.
    """
    try:
        if endpoint.prompt is None:
            return PromptOutline()
        read, rest = beginning_of(endpoint, parsed)
        outline = _outline(endpoint, read)
        return msgspec.structs.replace(outline, chars=outline.chars + rest) if rest else outline
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return PromptOutline()


def _outline(endpoint: ApiEndpoint, parsed: InferenceRequest) -> PromptOutline:
    tools = _bytes(parsed.tools)
    names = (parsed.model or "", parsed.cache_salt or "")
    seed = key_seed(*(name.encode(errors="surrogatepass") for name in names), tools)
    match endpoint.kind:
        case "chat":
            head, turns = "", _turns(parsed.messages)
        case "messages":
            head, turns = _head(parsed.system), _turns(parsed.messages)
        case "responses":
            head, turns = _head(parsed.instructions), _turns(parsed.input)
        case "embeddings" if is_chat_input(parsed.input):
            return PromptOutline()
        case _:
            first = first_prompt(parsed.prompt if endpoint.prompt == "prompt" else parsed.input)
            if isinstance(first, str):
                text, chars = first, len(first)
            else:
                text = ",".join(map(str, first[:_KEPT_CHARS]))
                chars = len(text) + _CHARS_AN_ID * max(0, len(first) - _KEPT_CHARS)
            keys = text_keys(seed, text)
            return PromptOutline(chars, text[:_KEPT_CHARS], text[:PREFIX_CHARS], keys)
    if isinstance(turns, str):
        turns = [_Turn("user", turns)]
    texts = [content_text(turn.content) for turn in turns]
    if head:
        texts.insert(0, head)
    messages = [(_role(turn), _content(turn)) for turn in turns[:MOST_MESSAGES]]
    if head:
        messages.insert(0, ("system", head))
    return _of_chat(seed, texts, messages, tools=bool(tools))


def scanned_outline(scanned: Scanned) -> PromptOutline | None:
    """Return the outline of a chat that was scanned, if its messages are texts and nothing else
    reaches its prompt; None for what has to be parsed.
    """
    messages = scanned.messages if scanned.bare else None
    if messages is None:
        return None
    names = (scanned.model, scanned.salt)
    seed = key_seed(*(name.encode(errors="surrogatepass") for name in names), b"")
    texts = [text for _, text in messages]
    return _of_chat(seed, texts, messages[:MOST_MESSAGES], tools=False)


def _of_chat(
    seed: int, texts: list[str], messages: list[tuple[str, str]], *, tools: bool
) -> PromptOutline:
    users = (index for index, (role, _) in enumerate(messages, 1) if role == "user")
    opening = texts[: next(users, len(texts))]
    return PromptOutline(
        chars=sum(map(len, texts)),
        start=_join(texts, _KEPT_CHARS),
        opening=_join(opening, PREFIX_CHARS),
        keys=chat_keys(seed, messages, tools=tools),
    )


def _turns(raw: msgspec.Raw) -> str | list[_Turn]:
    turns: str | list[_Turn] = _chats.decode(raw)
    return turns


def _head(raw: msgspec.Raw) -> str:
    return content_text(_parts.decode(raw)) if _bytes(raw) else ""


def _bytes(raw: msgspec.Raw) -> bytes:
    """Return a field's JSON, b"" for one that says nothing."""
    text = bytes(raw)
    return b"" if text in {b"null", b"[]"} else text


def _role(turn: _Turn) -> str:
    return turn.role if isinstance(turn.role, str) else ""


def _content(turn: _Turn) -> str:
    """Return what of a message reaches the prompt, images and calls as JSON."""
    content = turn.content
    if isinstance(content, str):
        return content
    parts = content_parts(content)
    if parts is None:
        parts = [one for one in (turn.arguments, turn.output) if one is not None]
    return "\n".join(map(_part, parts))


def _part(part: object) -> str:
    text = part_text(part)
    if text is not None:
        return text
    if isinstance(part, dict):
        fields = cast("JsonObject", part)
        part = {name: value for name, value in fields.items() if name not in _NOT_PROMPT}
    return msgspec.json.encode(part).decode()


def _join(texts: Iterable[str], most: int) -> str:
    """Return the first `most` characters of the texts, with ends of lines between them."""
    kept: list[str] = []
    chars = 0
    for text in texts:
        if chars >= most:
            break
        kept.append(text[:most])
        chars += len(kept[-1]) + 1
    return "\n".join(kept)[:most]
