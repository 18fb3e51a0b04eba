"""What the JSON of an answer's events says: what bookings need, and nothing else."""

from collections.abc import Mapping
from typing import Final

import msgspec

from kvmesh.bounds import MAX_TOKENS, Tokens, whole_number
from kvmesh.core.chat.answer_json import (
    STOPS,
    Answer,
    Choice,
    Reported,
    Stop,
    ending_of,
    read_answer,
)


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts an engine reported, 0 to `MAX_TOKENS`; no more are cached than it prompted.

    `cached_tokens` is None when it does not report them, and all counts are 0 when it reports none,
    as in a stream whose client did not ask for them. `response` is the id of what the engine keeps,
    an answer of the responses API or a file, by which later requests may name it. `stop` says why
    the answer ended, `tool` is the name of the tool it calls last, "" each where that is not seen.
    """

    prompt_tokens: Tokens = 0
    completion_tokens: Tokens = 0
    cached_tokens: Tokens | None = None
    response: str = ""
    stop: Stop = ""
    tool: str = ""


class _Code(msgspec.Struct):
    code: int | str | None = None
    type: object = ""


class _Failed(_Code):
    error: _Code | None = None


class _ErrorProbe(msgspec.Struct):
    error: object = None
    kind: str = msgspec.field(default="", name="object")


KEPT: Final = frozenset(
    {"response", "file", "batch", "conversation", "vector_store", "video", "mesh"}
)
"""Objects that an engine keeps, by whose id requests name them later."""

_NOTHING: Final = Usage()
_UNREPORTED: Final = Reported()
_NO_ENDING: Final[tuple[Stop, str]] = ("", "")
_errors = msgspec.json.Decoder(_ErrorProbe)
_failed = msgspec.json.Decoder(_Failed)
_FAILURES: Final = range(400, 600)
_CLIENTS: Final[Mapping[object, int]] = {
    "invalid_request_error": 400,
    "BadRequestError": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "NotFoundError": 404,
    "not_found_error": 404,
    "request_too_large": 413,
    "UnprocessableEntityError": 422,
    "rate_limit_error": 429,
}
"""Types of errors that are no engine's failure: those of the APIs and of their usual servers."""


def find_usage(body: bytes, before: Usage | None = None) -> Usage | None:
    """Return what one JSON object, a whole response or one event, says of the answer, merged over
    `before`: its usage, why it ended, the tool it calls.

    Reads chat completions, completions, responses (`response.usage`) and Anthropic messages
    (`message.usage`; its input count leaves cached tokens out, so they are added), and without
    usage llama.cpp's `timings`. What does not decode changes nothing.
    """
    answer = read_answer(body)
    return before if answer is None else usage_of(answer, before)


def usage_of(answer: Answer, before: Usage | None) -> Usage | None:
    """Do as `find_usage` for an object that is decoded."""
    usage, choices, named, kept = answer.usage, answer.choices, None, False
    if usage is None and answer.timings is not None:
        usage = answer.timings.reported()
    if before is None and usage is not None and choices is not None and len(choices) == 1:
        plain = _plain_usage(usage, choices[0])
        if plain is not None and answer.kind != "response":
            return plain
    if usage is None and answer.response is not None:
        usage, named = answer.response.usage, answer.response.id
    elif kept := isinstance(answer.kind, str) and answer.kind in KEPT:
        named = answer.id
    if usage is None and answer.message is not None:
        usage = answer.message.usage
    stop, tool = _NO_ENDING if choices is not None and not choices else ending_of(answer)
    made = named if isinstance(named, str) and (usage is not None or kept) else ""
    if usage is None and not (stop or tool or made):
        return before
    return _merge(before or _NOTHING, usage or _UNREPORTED, made, stop, tool)


def _plain_usage(reported: Reported, choice: Choice) -> Usage | None:
    """Return at once what a chat or completion of one choice without tools reports, a third of the
    time; None for any other. As `_merge` would.
    """
    prompt, completion = reported.prompt_tokens, reported.completion_tokens
    said, reason = choice.delta or choice.message, choice.finish_reason
    if prompt is None or completion is None or (said is not None and said.tool_calls):
        return None
    details = reported.prompt_tokens_details or reported.input_tokens_details
    cached = details.cached_tokens if details is not None else None
    if cached is not None:
        cached = min(cached, prompt or MAX_TOKENS)
    stop = STOPS.get(reason, "") if isinstance(reason, str) else ""
    return Usage(prompt, completion, cached, "", stop)


def _merge(before: Usage, reported: Reported, response: str, stop: Stop, tool: str) -> Usage:
    stop, tool = stop or before.stop, tool or before.tool
    details = reported.prompt_tokens_details or reported.input_tokens_details
    cached = details.cached_tokens if details is not None else None
    prompt = reported.prompt_tokens
    if prompt is None and reported.input_tokens is not None:
        prompt = reported.input_tokens
        if reported.cache_read_input_tokens is not None:
            cached = reported.cache_read_input_tokens
            prompt += cached + (reported.cache_creation_input_tokens or 0)
            prompt = min(prompt, MAX_TOKENS)
    completion = reported.completion_tokens
    if completion is None:
        completion = reported.output_tokens
    prompt = max(before.prompt_tokens, prompt or 0)
    cached = before.cached_tokens if cached is None else cached
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=max(before.completion_tokens, completion or 0),
        cached_tokens=None if cached is None else min(cached, prompt or MAX_TOKENS),
        response=response or before.response,
        # Engines say `stop` of an answer that calls the one tool it was made to call.
        stop="tool" if tool and stop == "end" else stop,
        tool=tool,
    )


def is_error(data: bytes) -> bool:
    """Tell whether an event is an error: in OpenAI's nested shape or in a flat one."""
    try:
        probe = _errors.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return probe.error is not None or probe.kind == "error"


def error_status(data: bytes) -> int:
    """Return the HTTP status that an error's JSON names as its code, or means by its type; 0 for
    none.
    """
    try:
        failed = _failed.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 0
    shown = failed.error or failed
    code, kind = shown.code, shown.type
    number = whole_number(code, _FAILURES.start, _FAILURES.stop) if isinstance(code, str) else code
    if number is not None and number in _FAILURES:
        return number
    return _CLIENTS.get(kind, 0) if isinstance(kind, str) else 0
