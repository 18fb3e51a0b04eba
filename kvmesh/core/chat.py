"""What a chat request says that decides its prompt tokens, and nothing else."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from kvmesh.errors import RequestError

JsonObject = dict[str, object]
"""One decoded JSON object: a message, a tool, a document."""

TEXT_KEYS: Final[Mapping[str, str]] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Content part types that are text, and the key their text is under; all others are media.

Source: vLLM `entrypoints/chat_utils.py`, `MM_PARSER_MAP`.
"""


class ChatBody(msgspec.Struct, frozen=True):
    """The fields of an OpenAI chat body that reach the template; all others are skipped."""

    messages: list[JsonObject]
    tools: list[JsonObject] | None = None
    tool_choice: object = None
    documents: list[JsonObject] | None = None
    chat_template_kwargs: JsonObject | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


class ChatInput(msgspec.Struct, frozen=True):
    """A conversation to be rendered and tokenised.

    With `truncated` the last message was cut before its first image, sound or other media part:
    its tokens are a prefix of the engine's, without end of message and generation prompt.
    """

    messages: list[JsonObject]
    tools: list[JsonObject] | None = None
    documents: list[JsonObject] | None = None
    chat_template_kwargs: JsonObject = {}
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    truncated: bool = False

    @classmethod
    def from_body(cls, body: bytes | bytearray | memoryview | Mapping[str, object]) -> "ChatInput":
        """Return the chat of an OpenAI request body, raw or decoded.

        Raises `RequestError` (400) naming the field when the body is not a chat.
        """
        parsed = _parse(body)
        if not parsed.messages:
            raise RequestError("messages is empty: send at least one message", param="messages")
        if parsed.continue_final_message and parsed.add_generation_prompt:
            parsed = msgspec.structs.replace(parsed, add_generation_prompt=False)
        messages, truncated = cut_at_media(parsed.messages)
        kwargs = dict(parsed.chat_template_kwargs or {})
        if parsed.reasoning_effort is not None:
            kwargs.setdefault("reasoning_effort", parsed.reasoning_effort)
        return cls(
            messages=messages,
            tools=parsed.tools or None,
            documents=parsed.documents or None,
            chat_template_kwargs=kwargs,
            add_generation_prompt=parsed.add_generation_prompt and not truncated,
            continue_final_message=parsed.continue_final_message and not truncated,
            truncated=truncated,
        )


def _parse(body: bytes | bytearray | memoryview | Mapping[str, object]) -> ChatBody:
    """Decode or convert a body; unknown fields cost no allocation."""
    try:
        if isinstance(body, Mapping):
            return msgspec.convert(body, ChatBody)
        return msgspec.json.decode(body, type=ChatBody)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"chat body: {error}", param="messages") from error


def part_text(part: object) -> str | None:
    """Return the text of a content part; None when it is media or malformed."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return None
    key = TEXT_KEYS.get(str(part.get("type", "text")))
    text = None if key is None else part.get(key)
    return text if isinstance(text, str) else None


def cut_at_media(messages: Sequence[JsonObject]) -> tuple[list[JsonObject], bool]:
    """Return the messages up to the first media part, and whether there was one."""
    for position, message in enumerate(messages):
        content = message.get("content")
        if not isinstance(content, list):
            continue
        for index, part in enumerate(content):
            if part_text(part) is None:
                head = {"role": message.get("role", "user"), "content": content[:index]}
                return [*messages[:position], head], True
    return list(messages), False


def content_text(content: object, joiner: str = "\n") -> str:
    """Return a message's content as one string; parts are joined as vLLM joins them."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts: Iterable[str | None] = (part_text(part) for part in content)
        return joiner.join(text for text in parts if text is not None)
    return ""
