"""A model's Jinja chat template, rendered exactly as `transformers` renders it.

Source: transformers 5.23 `utils/chat_template_utils.py`, `render_jinja_template`.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, Literal, cast

import jinja2
import msgspec
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvmesh.core.chat.chat import ChatInput, JsonObject, content_parts, part_text
from kvmesh.core.chat.template_format import (
    ContentFormat,
    sglang_content_format,
    vllm_content_format,
)
from kvmesh.errors import ConfigError, RequestError

Clock = Callable[[], datetime]
"""The engines' local wall clock, for templates that print today's date."""

CONTINUE_TAG: Final = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks the end of the message to continue. Its trailing blank shows whether the template trims."""

Cut = Literal["none", "continue", "media"]

MEDIA_TAG: Final = "MEDIA_PART_STARTS_HERE_TAG"
"""Stands where the first media part would be rendered."""

RESERVED_NAMES: Final = frozenset(
    ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template")
)
TEMPLATE_FAULTS: Final = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
)
"""What a template can raise on a request it does not expect; the engines answer 400 to each."""


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


class GenerationTag(Extension):
    """Lets `{% generation %}` stand in a template; it marks training masks and renders its body."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it as a plain set on the instance

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the body wrapped in a call, so that it keeps its own variable scope."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("render_body"), [], [], body).set_lineno(line)

    def render_body(self, caller: Macro) -> str:
        """Return the rendered body unchanged."""
        return caller()


class ChatTemplate:
    """A compiled template. Sandboxed: it can neither reach Python nor change its arguments."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], clock: Clock, *, origin: str
    ) -> None:
        """Compile `source`; `origin` names the file in the `ConfigError` of a broken template."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _tojson

        def strftime_now(pattern: str) -> str:
            return clock().strftime(pattern)

        functions = {"raise_exception": _raise_exception, "strftime_now": strftime_now}
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source, globals=functions)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"{origin}, line {error.lineno}: {error.message}; the chat template does not "
                "compile: correct it or give another with the template option"
            ) from error
        self._special_tokens: Mapping[str, object] = dict(special_tokens)
        self.vllm_format: ContentFormat = vllm_content_format(tree)
        self.sglang_format: ContentFormat = sglang_content_format(tree, source)
        self.knows_developer = '"developer"' in source or "'developer'" in source
        self.uses_clock = "strftime_now" in source

    def render(self, call: TemplateCall) -> str:
        """Return the prompt text. Raises `RequestError` with the template's own reason."""
        messages = [_without_nulls(message) for message in call.messages]
        continued = _mark_end(messages[-1]) if call.cut == "continue" else ""
        variables = {k: v for k, v in call.variables.items() if k not in RESERVED_NAMES}
        variables.setdefault("documents", call.documents)
        try:
            text = self._template.render(
                **{**self._special_tokens, **variables},
                messages=messages,
                tools=call.tools,
                add_generation_prompt=call.add_generation_prompt,
            )
        except TEMPLATE_FAULTS as error:
            raise RequestError(
                f"the chat template rejects the request: {error}", param="messages"
            ) from error
        if call.cut == "continue":
            return _cut_at_end(text, continued)
        if call.cut == "media":
            return text[: max(text.rfind(MEDIA_TAG), 0)]
        return text


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
    texts = [{"type": "text", "text": part_text(part)} for part in parts]
    tag = {"type": "text", "text": MEDIA_TAG}
    content: object = [*texts, tag] if content_format == "openai" else MEDIA_TAG
    return [*chat.messages[:-1], {**last, "content": content}]


def _without_nulls(message: JsonObject) -> JsonObject:
    """Return a copy without null fields, which many templates would print as `None`."""
    return {key: value for key, value in message.items() if value is not None}


def _mark_end(message: JsonObject) -> str:
    """Put the tag behind the message's last text and return that text."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + CONTINUE_TAG
        return content
    parts = list(content_parts(content) or ())
    for index in reversed(range(len(parts))):
        if isinstance(parts[index], dict) and "text" in cast("JsonObject", parts[index]):
            part = cast("JsonObject", parts[index])
            parts[index] = {**part, "text": f"{part['text']}{CONTINUE_TAG}"}
            message["content"] = parts
            return str(part["text"])
    raise RequestError(
        "continue_final_message is set, but the final message has no text to continue",
        param="continue_final_message",
    )


def _cut_at_end(text: str, continued: str) -> str:
    """Return the text up to the tag, without the blanks the template's own trimming would drop."""
    position = text.rfind(CONTINUE_TAG.strip())
    if position < 0 or continued.strip() not in text:
        raise RequestError(
            "continue_final_message is set, but the chat template does not print the final message "
            "as it was sent",
            param="continue_final_message",
        )
    head = text[:position]
    return head if text.startswith(CONTINUE_TAG, position) else head.rstrip()


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return plain JSON; Jinja's own filter would escape for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    """Refuse the conversation, called by the template."""
    raise jinja2.TemplateError(message)
