"""Server-sent events of LLM engines, seen in passing: what bookings need, and nothing else.

A stream is scanned, never re-encoded. An ordinary chunk (whole events of one `data: {` line each,
no usage, no error, no end) is decided by eight substring searches; all else is parsed line by line.
Source: WHATWG HTML, 9.2.6 "Interpreting an event stream".
"""

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

MAX_EVENT_BYTES: Final = 1 << 20
"""An event longer than this is counted, but not looked into."""
MAX_HELD_BYTES: Final = 1 << 16
"""A gate passes an event longer than this on in parts."""

_ORDINARY: Final = b"data: {"
_BLANK: Final = b"\n\n"
_DONE: Final = b"data: [DONE]"
_LONGEST_BLANK: Final = 3
"""Bytes of a blank line, the end of the line before it included: LF CR LF."""
_CARRIAGE_RETURN: Final = 13


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts an engine reported, 0 to `MAX_TOKENS`; no more are cached than it prompted.

    `cached_tokens` is None when it does not report them, and all counts are 0 when it reports none,
    as in a stream whose client did not ask for them. `response` is the id of an answer of the
    responses API, by which later requests may name it. `stop` says why the answer ended, `tool` is
    the name of the tool it calls last, "" each where that is not seen.
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
    (`message.usage`; its input count leaves cached tokens out, so they are added). What does not
    decode changes nothing.
    """
    answer = read_answer(body)
    return before if answer is None else usage_of(answer, before)


def usage_of(answer: Answer, before: Usage | None) -> Usage | None:
    """Do as `find_usage` for an object that is decoded."""
    usage, choices, named = answer.usage, answer.choices, None
    if before is None and usage is not None and choices is not None and len(choices) == 1:
        plain = _plain_usage(usage, choices[0])
        if plain is not None and answer.kind != "response":
            return plain
    if usage is None and answer.response is not None:
        usage, named = answer.response.usage, answer.response.id
    elif answer.kind == "response":
        named = answer.id
    if usage is None and answer.message is not None:
        usage = answer.message.usage
    stop, tool = _NO_ENDING if choices is not None and not choices else ending_of(answer)
    if usage is None and not (stop or tool):
        return before
    response = named if isinstance(named, str) and usage is not None else ""
    return _merge(before or _NOTHING, usage or _UNREPORTED, response, stop, tool)


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


def has_reason(data: bytes) -> bool:
    """Return whether an event says why the answer ended, in whatever words."""
    return data.rfind(b'_reason":"') >= 0 or data.rfind(b'_reason": "') >= 0


def is_end(data: bytes) -> bool:
    """Return whether an event may say why the answer ended, or name a tool that it calls. 0.1 us
    for 200 bytes; those of other tokens do not.
    """
    return (
        data.rfind(b'_reason":"') >= 0
        or data.rfind(b'"name":') >= 0
        or data.rfind(b'_reason": "') >= 0
    )


def ordinary_events(data: bytes) -> int:
    """Return how many events `data` is if it is nothing but whole ordinary ones, else 0."""
    lines = data.count(b"\n")
    events = lines >> 1
    ordinary = (
        data.startswith(_ORDINARY)
        and data.endswith(_BLANK)
        and (events == 1 or 2 * data.count(b"\n\ndata: {") == lines - 2)
        and lines == 2 * events
        and data.rfind(b'"usage"') < 0
        and data.rfind(b'"error"') < 0
        and not is_end(data)
        and _CARRIAGE_RETURN not in data
    )
    return events if ordinary else 0


class SseScanner:
    """Folds a stream's bytes, however they are cut.

    `tokens`: events that carry output, about one per token: every data event, except that of named
    events (Anthropic, responses) only the `…delta` ones count. `[DONE]`, errors and comments do
    not. `done`: `[DONE]` was seen as an event of its own. `errors`: error events; `error` is the
    last one's data. `usage`: what was reported last. `reasoned`: one said why the answer ended.
    """

    __slots__ = (
        "_after_cr", "_skipping", "_tail", "done", "error", "errors", "reasoned", "tokens", "usage",
    )  # fmt: skip

    def __init__(self) -> None:
        self.tokens = 0
        self.done = False
        self.reasoned = False
        self.errors = 0
        self.error = b""
        self.usage: Usage | None = None
        self._tail = bytearray()
        self._after_cr = False
        self._skipping = False

    def feed(self, data: bytes) -> int:
        """Take the next bytes, return how many token events ended in them.

        O(len(data)); 0.6 us for an ordinary chunk of 200 bytes (`rfind` is twice as quick as `in`).
        """
        if not self._tail and (events := ordinary_events(data)):
            self.tokens += events
            return events
        return self._feed_lines(data)

    def _feed_lines(self, data: bytes) -> int:
        before = self.tokens
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        tail = self._tail
        searched = max(0, len(tail) - 1)  # bytes that come one by one cost as much as at once
        tail += data
        end = tail.rfind(_BLANK, searched)
        if end >= 0:
            whole = bytes(tail[:end])
            del tail[: end + len(_BLANK)]
            for block in whole.split(_BLANK):
                plain = block.startswith(_ORDINARY) and b"\n" not in block
                if (
                    plain
                    and not self._skipping
                    and not (b'"usage"' in block or b'"error"' in block or is_end(block))
                ):
                    self.tokens += 1
                elif block == _DONE and not self._skipping:
                    self.done = True
                else:
                    self.take_event(block)
        if len(tail) > MAX_EVENT_BYTES:
            self._skipping = True
            del tail[:-1]
        return self.tokens - before

    @property
    def is_inside(self) -> bool:
        """Return whether an event, or the end of a line, is cut."""
        return bool(self._tail) or self._after_cr or self._skipping

    def resume(self, tail: bytes) -> None:
        """Go on behind `tail`, the beginning of an event: the events before were read elsewhere."""
        self._tail[:] = tail

    def take_event(self, block: bytes) -> None:
        """Take one event, without the blank line behind it."""
        if self._skipping:
            self._skipping = False
            self.tokens += 1
            return
        name = b""
        values: list[bytes] = []
        for line in block.split(b"\n"):
            if line.startswith(b"data:"):
                values.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif line.startswith(b"event:"):
                name = line[6:].strip()
        data = values[0] if len(values) == 1 else b"\n".join(values)
        if not data:
            return
        if data.strip() == b"[DONE]":
            self.done = True
            return
        if name == b"error" or (b'"error"' in data and _is_error(data)):
            self.errors += 1
            self.error = data
            return
        if not name or name.endswith(b"delta"):
            self.tokens += 1
        if b'"usage"' in data or is_end(data):
            self.usage = find_usage(data, self.usage)
            self.reasoned = self.reasoned or has_reason(data)


def _is_error(data: bytes) -> bool:
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


def _behind(data: bytearray, blank: bytes, start: int) -> int:
    """Return the position behind the last `blank` from `start` on, 0 when there is none."""
    at = data.rfind(blank, start)
    return 0 if at < 0 else at + len(blank)


class EventGate:
    """Lets only whole events through, so that a stream can be broken off with an event of ours.

    `torn`: a part of an overlong event has passed; a blank line
    must come before anything else.
    """

    __slots__ = ("_held", "_last", "_most_held", "torn")

    def __init__(self) -> None:
        self._held = bytearray()
        self._last = b""
        self._most_held = MAX_HELD_BYTES
        self.torn = False

    @property
    def held(self) -> bytes:
        """Return what has not passed yet."""
        return bytes(self._held)

    def feed(self, data: bytes) -> bytes:
        """Return what may pass now: all up to the last blank line.

        When that is all, it is `data` itself, in 0.1 us.
        """
        held = self._held
        if not held and data.endswith(_BLANK):
            self.torn = False
            self._last = data
            return data
        searched = max(0, len(held) - _LONGEST_BLANK + 1)
        held += data
        end = _behind(held, b"\n\n", searched)
        if held.find(_CARRIAGE_RETURN, searched) >= 0:
            end = max(end, _behind(held, b"\n\r\n", searched), _behind(held, b"\r\r", searched))
        if len(held) - end > self._most_held:
            self.torn = True
            return self.flush()
        passed = bytes(held[:end])
        del held[:end]
        if end:
            self.torn = False
            self._last = passed
        return passed

    def resume(self, held: bytes, *, complete: bool, most_held: int = MAX_HELD_BYTES) -> None:
        """Go on with `held`; what has passed elsewhere ended in `[DONE]` if it was `complete`. An
        event of more than `most_held` bytes is passed on in parts.
        """
        self._most_held = most_held
        self._held[:] = held
        self._last = _DONE if complete else b""

    def is_complete(self) -> bool:
        """Return whether the last event that passed was `[DONE]`: nothing is missing behind it."""
        return not self.torn and self._last.rstrip().endswith(_DONE)

    def flush(self) -> bytes:
        """Return what is held: the stream ended without a last blank line."""
        held = bytes(self._held)
        self._held.clear()
        return held
