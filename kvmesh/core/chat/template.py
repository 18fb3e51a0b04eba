"""A model's Jinja chat template, rendered exactly as `transformers` renders it.

Source: transformers 5.23 `utils/chat_template_utils.py`, `render_jinja_template`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

import jinja2

from kvmesh.core.chat.chat import JsonObject, content_parts, without_nulls
from kvmesh.core.chat.message_loop import Choose, MessageLoop, find_message_loop
from kvmesh.core.chat.opaque_text import (
    SENTINEL,
    OpaqueText,
    ReadsTextError,
    Slot,
    Trace,
    opaque,
    put_texts,
)
from kvmesh.core.chat.skeleton import Skeleton, merged
from kvmesh.core.chat.syntax import new_environment
from kvmesh.core.chat.template_call import MEDIA_TAG, Clock, ContentFormat, TemplateCall
from kvmesh.core.chat.tracing import TracingEnvironment
from kvmesh.errors import ConfigError, RequestError

CONTINUE_TAG: Final = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks the end of the message to continue. Its trailing blank shows whether the template trims."""

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


class ChatTemplate:
    """A compiled template. Sandboxed: it can neither reach Python nor change its arguments."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], clock: Clock, *, origin: str
    ) -> None:
        """Compile `source`; `origin` names the file in the `ConfigError` of a broken template."""
        environment = new_environment()
        environment.filters["tojson"] = _tojson

        functions = {"raise_exception": _raise_exception, "strftime_now": self.now}
        try:
            self._template = environment.from_string(source, globals=functions)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"{origin}, line {error.lineno}: {error.message}; the chat template does not "
                "compile: correct it or give another with the template option"
            ) from error
        # Every run copies them: Jinja's own mapping of two takes a third of a short run for that.
        self._template.globals = dict(self._template.globals)
        self._special_tokens: Mapping[str, object] = dict(special_tokens)
        self._source = source
        self._clock = clock
        # One, which whoever traces takes out and puts back: it keeps what a run assumes.
        self._tracers: list[tuple[TracingEnvironment, jinja2.Template] | None] = [None]
        self._formats: dict[Callable[[str], ContentFormat], ContentFormat] = {}
        self._system_first: dict[Callable[[str], bool], bool] = {}
        self.knows_developer = '"developer"' in source or "'developer'" in source
        self.uses_clock = "strftime_now" in source
        self.loop: MessageLoop | None = None
        if not self.uses_clock:
            self.loop = find_message_loop(environment, source, functions)

    def content_format(self, detect: Callable[[str], ContentFormat]) -> ContentFormat:
        """Return what `detect` finds in the template's source, looked for once."""
        found = self._formats.get(detect)
        if found is None:
            found = self._formats[detect] = detect(self._source)
        return found

    def wants_system_first(self, probe: Callable[[str], bool]) -> bool:
        """Return whether `probe` says so of the template's source, asked once."""
        found = self._system_first.get(probe)
        if found is None:
            found = self._system_first[probe] = probe(self._source)
        return found

    def render(self, call: TemplateCall) -> str:
        """Return the prompt text. Raises `RequestError` with the template's own reason."""
        messages = [without_nulls(message) for message in call.messages]
        continued = ""
        if call.cut == "continue":
            messages[-1] = {**messages[-1]}
            continued = _mark_end(messages[-1])
        try:
            text = self._template.render(**self._variables(call, messages))
        except TEMPLATE_FAULTS as error:
            raise RequestError(
                f"the chat template rejects the request: {error}", param="messages"
            ) from error
        if call.cut == "continue":
            return _cut_at_end(text, continued)
        if call.cut == "media":
            return text[: max(text.rfind(MEDIA_TAG), 0)]
        return text

    def render_messages(
        self, call: TemplateCall, messages: list[JsonObject], choose: Choose
    ) -> list[str] | None:
        """Return what is printed in front of the messages, which are the call's without nulls, of
        each that `choose` names, and behind them; None where all must be rendered as a whole.
        """
        if self.loop is None:
            return None
        try:
            return self.loop.run(self._variables(call, messages), choose)
        except TEMPLATE_FAULTS:
            return None

    def now(self, pattern: str) -> str:
        """Return what the template's clock prints now."""
        return self._clock().strftime(pattern)

    def outline(self, call: TemplateCall, keys: Sequence[str]) -> Skeleton | str | None:
        """Return what the template prints around the texts for which `keys` stand in `call`.

        Else why it cannot be told: the template looks at texts; "" where it refuses the chat. None
        while another thread asks. From any thread; takes as long as a few renderings.
        """
        try:
            idle = self._tracers.pop()
        except IndexError:
            return None
        environment, template = tracer = idle or self._new_tracer()
        environment.trace = trace = Trace()
        try:
            texts = {key: opaque(trace, [Slot(index)]) for index, key in enumerate(keys)}
            messages = [
                cast("JsonObject", put_texts(without_nulls(message), texts))
                for message in call.messages
            ]
            text = template.render(**self._variables(call, messages))
        except (*TEMPLATE_FAULTS, ReadsTextError):
            return trace.refused
        finally:
            self._tracers.append(tracer)
        if trace.refused:
            return trace.refused
        pieces = merged(text.pieces if isinstance(text, OpaqueText) else [text])
        if any(isinstance(piece, str) and SENTINEL in piece for piece in pieces):
            return "handles texts in a way not understood"
        return Skeleton(pieces, tuple(trace.absent), tuple(trace.clock.items()))

    def _new_tracer(self) -> tuple[TracingEnvironment, jinja2.Template]:
        environment = TracingEnvironment()
        environment.filters["tojson"] = environment.guarded(_tojson, "filter tojson")

        def strftime_now(pattern: str) -> str:
            found = environment.trace.clock[pattern] = self.now(pattern)
            return found

        functions = {"raise_exception": _raise_exception, "strftime_now": strftime_now}
        return environment, environment.compile_traced(self._source, functions)

    def _variables(self, call: TemplateCall, messages: list[JsonObject]) -> JsonObject:
        """Return what the template sees."""
        variables = {k: v for k, v in call.variables.items() if k not in RESERVED_NAMES}
        variables.setdefault("documents", call.documents)
        return {
            **self._special_tokens,
            **variables,
            "messages": messages,
            "tools": call.tools,
            "add_generation_prompt": call.add_generation_prompt,
        }


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
