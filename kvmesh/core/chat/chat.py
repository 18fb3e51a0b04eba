"""What a chat request says that decides its prompt tokens, and nothing else."""

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Final, cast

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

Source: vLLM `renderers/chat_utils.py`, `MM_PARSER_MAP`.
"""


_NUMBERS: Final = count(1)
_NOTHING: Final[JsonObject] = {}


class KnownMessage(JsonObject):
    """A message that was read before, from `size` bytes; no other has its `number`. Its `role` is
    here, too, in reach without its fields. `sound`: nothing of it is wrong, nor media. `made` is
    what its engine made of it for the content format `how`, `shown` what of that reaches its
    template. `ids` are those of what the template printed when it stood among what `seen` says;
    None: what it printed cannot be tokenized on its own.
    """

    __slots__ = ("how", "ids", "made", "number", "role", "seen", "shown", "size", "sound")

    def __init__(self, fields: JsonObject, size: int) -> None:
        super().__init__(fields)
        self.size = size
        self.role = fields.get("role")
        self.number = next(_NUMBERS)
        self.how = ""
        self.made = self.shown = _NOTHING
        self.sound = False
        self.seen: tuple[int, ...] | None = ()
        self.ids = b""


class KnownTools(list[JsonObject]):
    """Tools that were read before, likewise. `packed` are they as bytes."""

    __slots__ = ("made", "number", "packed", "sound")

    def __init__(self, tools: list[JsonObject]) -> None:
        super().__init__(tools)
        self.number = next(_NUMBERS)
        self.made: list[JsonObject] | None = None
        self.packed = b""
        self.sound = False


def without_nulls(message: JsonObject) -> JsonObject:
    """Return a message without null fields, which many templates would print as `None`."""
    if None not in message.values():
        return message
    return {key: value for key, value in message.items() if value is not None}


def shaped(
    messages: list[JsonObject], how: str, shape: Callable[[JsonObject, str], JsonObject]
) -> list[JsonObject]:
    """Return what an engine's `shape` makes of each message in that format, made once of those that
    are known.
    """
    return [
        one.made if isinstance(one, KnownMessage) and one.how == how else _shaped(one, how, shape)
        for one in messages
    ]


def _shaped(
    message: JsonObject, how: str, shape: Callable[[JsonObject, str], JsonObject]
) -> JsonObject:
    made = shape(message, how)
    if isinstance(message, KnownMessage):
        message.how, message.made, message.shown = how, made, without_nulls(made)
    return made


def shaped_tools(
    tools: list[JsonObject], shape: Callable[[JsonObject], JsonObject]
) -> list[JsonObject]:
    """Return what an engine's `shape` makes of each tool, made once of tools that are known."""
    if not isinstance(tools, KnownTools):
        return [shape(tool) for tool in tools]
    if tools.made is None:
        tools.made = [shape(tool) for tool in tools]
    return tools.made


def has_role(messages: list[JsonObject], role: str) -> bool:
    """Return whether one of the messages is of this role."""
    return role in [
        one.role if isinstance(one, KnownMessage) else one.get("role") for one in messages
    ]


KeepMedia = Callable[[JsonObject, JsonObject], JsonObject | None]
"""What stands in a message of a chat for a part of media whose tokens are known; None for any
other.
"""


def keep_none(part: JsonObject, message: JsonObject) -> None:
    """Keep no part."""
    del part, message


class ChatBody(msgspec.Struct, frozen=True):
    """The fields of an OpenAI chat body that reach the template; all others are skipped."""

    messages: list[JsonObject]
    tools: list[JsonObject] | None = None
    tool_choice: object = None
    documents: list[JsonObject] | None = None
    chat_template_kwargs: JsonObject | None = None
    reasoning_effort: str | float | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


class ChatInput(msgspec.Struct, frozen=True):
    """A conversation to be rendered and tokenised, as the client sent it.

    With `truncated` the last message was cut before an image, sound or other media part, the first
    whose tokens are not known: its tokens are a prefix of the engine's, without end of message and
    generation prompt.
    With `gathers_system` all system messages become one where the template wants it in front.
    """

    messages: list[JsonObject]
    tools: list[JsonObject] | None = None
    documents: list[JsonObject] | None = None
    chat_template_kwargs: JsonObject = {}
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    truncated: bool = False
    tool_choice: object = None
    reasoning_effort: str | float | None = None
    gathers_system: bool = False

    @classmethod
    def from_body(
        cls,
        body: bytes | bytearray | memoryview | Mapping[str, object],
        keep: KeepMedia = keep_none,
    ) -> "ChatInput":
        """Return the chat of an OpenAI request body, raw or decoded, as `of` does.

        Raises `RequestError` (400) naming the field when the body is not a chat.
        """
        return cls.of(_parse(body), keep)

    @classmethod
    def of(cls, parsed: ChatBody, keep: KeepMedia = keep_none) -> "ChatInput":
        """Return the chat of a decoded body, up to the first part of media of which `keep` makes
        nothing; it is asked for each, in their order. Raises `RequestError` (400) naming the field.
        """
        messages, truncated = parsed.messages, False
        if not messages:
            raise RequestError("messages is empty: send at least one message", param="messages")
        fresh = [one for one in messages if not (isinstance(one, KnownMessage) and one.sound)]
        tools = parsed.tools
        if isinstance(tools, KnownTools) and tools.sound:
            tools = None
        plain = not tools
        for message in fresh:
            plain = (
                plain
                and isinstance(message.get("content"), str)
                and isinstance(message.get("role", ""), str)
                and "tool_calls" not in message
            )
        if not plain:
            _check_calls(messages, fresh, tools)
            messages, truncated = _cut_at_media(messages, keep)
        if not truncated:
            _note_sound(fresh, tools)
        continued = parsed.continue_final_message
        return cls(
            messages=messages,
            tools=parsed.tools or None,
            documents=parsed.documents or None,
            chat_template_kwargs=parsed.chat_template_kwargs or {},
            add_generation_prompt=parsed.add_generation_prompt and not (truncated or continued),
            continue_final_message=continued and not truncated,
            truncated=truncated,
            tool_choice=parsed.tool_choice,
            reasoning_effort=parsed.reasoning_effort,
        )


def chat_of_texts(messages: Iterable[tuple[str, str]]) -> ChatInput:
    """Return a chat of these roles and contents."""
    return ChatInput([{"role": role, "content": content} for role, content in messages])


def part_text(part: object) -> str | None:
    """Return the text of a content part; None when it is media or malformed."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return None
    fields = cast("JsonObject", part)
    key = TEXT_KEYS.get(str(fields.get("type", "text")))
    text = None if key is None else fields.get(key)
    return text if isinstance(text, str) else None


def content_parts(content: object) -> list[object] | None:
    """Return the parts of a message's content; None when it is not a list."""
    return cast("list[object]", content) if isinstance(content, list) else None


def content_text(content: object, joiner: str = "\n") -> str:
    """Return a message's content as one string; `joiner` goes between its text parts."""
    if isinstance(content, str):
        return content
    parts: Iterable[str | None] = map(part_text, content_parts(content) or ())
    return joiner.join(text for text in parts if text is not None)


def _parse(body: bytes | bytearray | memoryview | Mapping[str, object]) -> ChatBody:
    """Decode or convert a body; unknown fields cost no allocation."""
    try:
        if isinstance(body, Mapping):
            return msgspec.convert(body, ChatBody)
        return msgspec.json.decode(body, type=ChatBody)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"chat body: {error}", param="messages") from error


def _note_sound(messages: list[JsonObject], tools: list[JsonObject] | None) -> None:
    """Mark what is known as checked."""
    if isinstance(tools, KnownTools):
        tools.sound = True
    for message in messages:
        if isinstance(message, KnownMessage):
            message.sound = True


def _check_calls(
    messages: list[JsonObject], fresh: list[JsonObject], tools: list[JsonObject] | None
) -> None:
    """Refuse roles, tool calls and tools that are not even of the shape templates walk through: of
    the `fresh` ones of these messages.
    """
    calls: list[object] = []
    for message in fresh:
        if not isinstance(message.get("role", ""), str):
            raise RequestError(
                f"messages[{_place_of(message, messages)}].role is not a string", param="messages"
            )
        made = message.get("tool_calls")
        if made is None:
            continue
        if not isinstance(made, list):
            raise RequestError(
                f"messages[{_place_of(message, messages)}].tool_calls is not a list",
                param="messages",
            )
        calls += made
    if not calls and not tools:
        return
    for param, entries in (("messages", calls), ("tools", tools or ())):
        for entry in entries:
            function = cast("JsonObject", entry).get("function") if isinstance(entry, dict) else 0
            if not (function is None or isinstance(function, dict)):
                raise RequestError("a tool or tool call has no function object", param=param)


def _place_of(message: JsonObject, messages: list[JsonObject]) -> int:
    return next(index for index, one in enumerate(messages) if one is message)


def _cut_at_media(messages: list[JsonObject], keep: KeepMedia) -> tuple[list[JsonObject], bool]:
    """Return the messages up to the first media part that is not kept; whether there was one."""
    kept = messages
    for position, message in enumerate(messages):
        if isinstance(message, KnownMessage) and message.sound:
            continue
        made: list[object] = []
        parts = content_parts(message.get("content")) or ()
        for part in parts:
            found: object = part
            if part_text(part) is None:
                is_one = isinstance(part, dict)
                found = keep(cast("JsonObject", part), message) if is_one else None
            if found is None:
                return [*kept[:position], {**message, "content": made}], True
            made.append(found)
        if any(new is not old for new, old in zip(made, parts, strict=True)):
            kept = [*messages] if kept is messages else kept
            kept[position] = {**message, "content": made}
    return kept, False
