"""Prompts of the responses API and of Anthropic's messages, as the chats they amount to."""

from typing import Final

import msgspec

from kvmesh.core.chat.chat import ChatInput, JsonObject
from kvmesh.errors import RequestError

_ABSENT: Final = frozenset({b"", b"null"})


def chat_of_turns(turns: msgspec.Raw, system: msgspec.Raw, tools: msgspec.Raw) -> ChatInput:
    """Return raw `messages` or `input` as a chat, system text first. Raises `RequestError` (400).

    An engine may render these a little differently; then only the common prefix matches.
    """
    try:
        said = msgspec.json.decode(turns, type=str | list[JsonObject])
        listed: list[JsonObject] = (
            [{"role": "user", "content": said}] if isinstance(said, str) else said
        )
        if bytes(system) not in _ABSENT:
            listed = [{"role": "system", "content": msgspec.json.decode(system)}, *listed]
        body: JsonObject = {"messages": listed}
        if bytes(tools) not in _ABSENT:
            body["tools"] = msgspec.json.decode(tools)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"prompt: {error}") from error
    return ChatInput.from_body(body)
