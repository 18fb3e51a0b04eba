"""What one JSON object of an answer, the whole of it or one event, says of the answer itself: its
token counts, why it ended, the tool it calls. All else in it is skipped unread.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from kvmesh.bounds import MAX_TOKENS, UNREADABLE, Tokens, is_name

Stop = Literal["", "tool", "end", "length"]
"""Why an answer ended: a tool is to be called, the model was done, it was cut; "": unknown."""

MAX_TOOL: Final = 128
"""Characters of a tool's name: Anthropic's bound, OpenAI's is 64. A longer one is not read."""

STOPS: Final[Mapping[str, Stop]] = {
    "tool_calls": "tool",
    "tool_use": "tool",
    "function_call": "tool",
    "pause_turn": "tool",
    "stop": "end",
    "end_turn": "end",
    "stop_sequence": "end",
    "completed": "end",
    "content_filter": "end",
    "refusal": "end",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_context_window_exceeded": "length",
}
"""The words of chat completions, completions, messages and responses. After `pause_turn` a client
goes on at once, as after a tool. Engines' other words (abort, error) foretell nothing.
"""

CALLS: Final = frozenset(
    {
        "tool_use",
        "function_call",
        "custom_tool_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
        "computer_call",
    }
)
"""Blocks of messages and items of responses that are calls of a tool which the client runs."""


class _Details(msgspec.Struct):
    cached_tokens: Tokens | None = None


class Reported(msgspec.Struct):
    """Token counts in the words of every API."""

    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: Tokens | None = None
    cache_creation_input_tokens: Tokens | None = None


class Timings(msgspec.Struct):
    """What llama.cpp's server tells of every answer, whether its client asked for usage or not:
    tokens of the prompt that were cached and that were computed, and those of the answer.
    """

    cache_n: Tokens | None = None
    prompt_n: Tokens | None = None
    predicted_n: Tokens | None = None

    def reported(self) -> Reported | None:
        """Return it as usage, None where a count is missing."""
        cached, computed = self.cache_n, self.prompt_n
        if cached is None or computed is None:
            return None
        prompt = min(cached + computed, MAX_TOKENS)
        return Reported(prompt, self.predicted_n, _Details(cached))


class _Block(msgspec.Struct):
    """A block of a message's content or an item of a response's output."""

    type: object = ""
    name: object = ""


class _Function(msgspec.Struct):
    name: object = ""


class _Call(msgspec.Struct):
    function: _Function | None = None


class _Said(msgspec.Struct):
    """A chat's message, a part of one, or Anthropic's delta of a message."""

    tool_calls: list[_Call] | None = None
    stop_reason: object = ""


class Choice(msgspec.Struct):
    """One of several answers, or a part of it."""

    finish_reason: object = ""
    delta: _Said | None = None
    message: _Said | None = None


class _Cut(msgspec.Struct):
    reason: object = ""


class Inner(msgspec.Struct):
    """A response or message within an event."""

    usage: Reported | None = None
    id: object = ""
    status: object = ""
    output: list[_Block] | None = None
    incomplete_details: _Cut | None = None


class Answer(msgspec.Struct):
    """One object of an answer; `kind` is its field `object`, `data` is left unread."""

    usage: Reported | None = None
    model: object = ""
    id: object = ""
    kind: object = msgspec.field(default="", name="object")
    response: Inner | None = None
    message: Inner | None = None
    choices: list[Choice] | None = None
    stop_reason: object = ""
    content: list[_Block] | None = None
    content_block: _Block | None = None
    delta: _Said | None = None
    item: _Block | None = None
    status: object = ""
    output: list[_Block] | None = None
    incomplete_details: _Cut | None = None
    data: msgspec.Raw | None = None
    timings: Timings | None = None


class _CountedInner(msgspec.Struct):
    usage: Reported | None = None
    id: object = ""


class _Counted(msgspec.Struct):
    usage: Reported | None = None
    id: object = ""
    kind: object = msgspec.field(default="", name="object")
    response: _CountedInner | None = None
    message: _CountedInner | None = None


_answers: Final = msgspec.json.Decoder(Answer)
_counted: Final = msgspec.json.Decoder(_Counted)


def read_answer(body: bytes) -> Answer | None:
    """Return what an object says; its counts alone where the rest is not as any API has it, None
    where they do not decode either.
    """
    try:
        return _answers.decode(body)
    except UNREADABLE:
        pass
    try:
        counted = _counted.decode(body)
    except UNREADABLE:
        return None
    return Answer(
        counted.usage,
        id=counted.id,
        kind=counted.kind,
        response=_inner(counted.response),
        message=_inner(counted.message),
    )


def _inner(one: _CountedInner | None) -> Inner | None:
    return None if one is None else Inner(usage=one.usage, id=one.id)


def ending_of(answer: Answer) -> tuple[Stop, str]:
    """Return why an answer ended, as far as this object says, and the tool it calls last; "" each
    for what it does not say.
    """
    if answer.choices is not None:
        return _of_choices(answer.choices)
    response = answer.response
    if response is not None and response.output is not None:
        return _of_response(response.status, response.output, response.incomplete_details)
    if answer.kind == "response" and answer.output is not None:
        return _of_response(answer.status, answer.output, answer.incomplete_details)
    stop = _stop(answer.stop_reason) or _stop(answer.delta.stop_reason if answer.delta else "")
    blocks = answer.content or [one for one in (answer.content_block, answer.item) if one]
    return stop, _called(blocks)


def _of_choices(choices: list[Choice]) -> tuple[Stop, str]:
    stop: Stop = ""
    tool = ""
    for choice in choices:
        stop = _stop(choice.finish_reason) or stop
        said = choice.delta or choice.message
        for call in (said.tool_calls if said is not None else None) or ():
            tool = _tool(call.function.name if call.function is not None else "") or tool
    return stop, tool


def _of_response(status: object, output: list[_Block], cut: _Cut | None) -> tuple[Stop, str]:
    tool = _called(output)
    stop = _stop(status) or (_stop(cut.reason) if cut is not None else "")
    return "tool" if tool and stop == "end" else stop, tool


def _called(blocks: Iterable[_Block]) -> str:
    """Return the tool called last: its name, else what kind of call it is."""
    tool = ""
    for one in blocks:
        if isinstance(one.type, str) and one.type in CALLS:
            tool = _tool(one.name) or one.type
    return tool


def _stop(word: object) -> Stop:
    return STOPS.get(word, "") if isinstance(word, str) else ""


def _tool(name: object) -> str:
    """Return a tool's name; "" for what is none."""
    return name if isinstance(name, str) and len(name) <= MAX_TOOL and is_name(name) else ""
