"""What an engine's way with chats hands to a chat template, and what it asks of it before."""

from collections.abc import Callable
from datetime import datetime
from typing import Final, Literal, Protocol

import msgspec

from kvmesh.core.chat.chat import ChatInput, JsonObject, content_parts, part_text

Clock = Callable[[], datetime]
"""The engines' local wall clock, for templates that print today's date."""

ContentFormat = Literal["string", "openai"]
"""`openai`: a list of `{"type": "text", "text": ...}`; `string`: the parts' texts joined."""

Cut = Literal["none", "continue", "media"]

MEDIA_TAG: Final = "MEDIA_PART_STARTS_HERE_TAG"
"""Stands where the first media part would be rendered."""


class TemplateCall(msgspec.Struct, frozen=True):
    """One rendering: what the template sees, already in the engine's shape.

    `cut` ends the text inside the last message: `continue` where its content ends, `media` where
    `MEDIA_TAG` was put into it. `suffix` is not rendered: its tokens, encoded on their own, follow.
    """

    messages: list[JsonObject]
    tools: list[JsonObject] | None = None
    documents: list[JsonObject] | None = None
    variables: JsonObject = {}
    add_generation_prompt: bool = True
    cut: Cut = "none"
    suffix: str = ""


class TemplateTraits(Protocol):
    """What shaping a chat depends on in the template it is for."""

    knows_developer: bool

    def content_format(self, detect: Callable[[str], ContentFormat]) -> ContentFormat:
        """Return what `detect` finds in the template's source, looked for once."""
        ...

    def wants_system_first(self, probe: Callable[[str], bool]) -> bool:
        """Return whether `probe` says so of the template's source, asked once."""
        ...


ChatShape = Callable[[ChatInput, TemplateTraits], TemplateCall]
"""The chat as an engine hands it to the template. May raise `RequestError`."""


def cut_of(chat: ChatInput) -> Cut:
    """Return where the rendering of `chat` must end."""
    if chat.truncated:
        return "media"
    return "continue" if chat.continue_final_message else "none"


def tagged_messages(chat: ChatInput, content_format: ContentFormat) -> list[JsonObject]:
    """Return the messages, with `MEDIA_TAG` where a media part was cut off.

    String-format templates get their placeholders in front of the message's text.
    """
    if not chat.truncated:
        return chat.messages
    last = chat.messages[-1]
    parts = content_parts(last.get("content")) or ()
    texts = [
        part if (text := part_text(part)) is None else {"type": "text", "text": text}
        for part in parts
    ]
    tag = {"type": "text", "text": MEDIA_TAG}
    content: object = [*texts, tag] if content_format == "openai" else MEDIA_TAG
    return [*chat.messages[:-1], {**last, "content": content}]
