"""Whether what an engine sent with status 200 is an answer: what a whole one must hold, what a
stream's first event, and what its end.

No verdict may fall on an answer that is odd but legal, so it rests on two kinds of evidence.
Nothing at all, HTML, what is no JSON, an error in place of an answer, and a stream that says
neither why it ended nor `[DONE]` are wrong from any engine. All else is held against what the same
worker has shown before: one that has named models it announced, given reasons, or ended with
`[DONE]` each of `SURE` times, is expected to go on so; one that ever did otherwise is not.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from kvmesh._native import EventStream
from kvmesh.bounds import UNREADABLE
from kvmesh.core.chat.answer_json import Answer, read_answer
from kvmesh.core.engines.event_stream import new_event_stream
from kvmesh.core.engines.sse import Usage, usage_of
from kvmesh.core.members.answer_parts import (
    DATA,
    DONE,
    ENDED,
    FIELDS,
    JSON_OBJECT,
    carries,
    datas,
    ends_whole,
    model_of,
    resemble,
    wants_tokens,
)

Form = Literal["", "chat", "completions", "responses", "messages", "embeddings"]
"""The API that a request was sent to; "": none whose answers are looked into."""

Sickness = Literal[
    "", "empty", "malformed", "html", "error", "wrong_model", "no_tokens", "unfinished"
]
"""What is wrong with an answer; "": nothing."""

SICK_WORDS: Final[Mapping[str, str]] = {
    "empty": "with nothing in it",
    "malformed": "that is not what the path answers",
    "html": "that is a web page",
    "error": "that holds an error",
    "wrong_model": "of another model",
    "no_tokens": "without a token",
    "unfinished": "without its end",
}
"""What people are shown behind "answered 200"."""

DOUBTFUL: Final = frozenset({"wrong_model", "no_tokens"})
"""Sicknesses of an answer that is well-formed: it is passed on where no other worker does better.
"""

SHORT_EVENTS: Final = 2
"""A stream of so few events may be a whole one without any output."""

SURE: Final = 8
"""So many answers with something, and none without, make a habit of it."""

_HTML: Final = b"<"
_NONE: Final = frozenset({b"", b"null", b"false", b"[]", b"{}", b'""'})
_KEYS: Final[Mapping[Form, tuple[str, ...]]] = {
    "": (),
    "chat": ("choices",),
    "completions": ("choices",),
    "messages": ("content",),
    "responses": ("output",),
    "embeddings": ("data", "embedding", "embeddings"),
}
_DONE_ENDS: Final = frozenset({"chat", "completions"})
_MOST_ERROR: Final = 200


class _Named(msgspec.Struct):
    model: object = ""


class _First(msgspec.Struct):
    """One event, as far as its first says whose it is."""

    model: object = ""
    message: _Named | None = None
    response: _Named | None = None


class _Message(msgspec.Struct):
    message: str = ""


class _Failed(msgspec.Struct):
    error: _Message | str | None = None
    message: str = ""


_first: Final = msgspec.json.Decoder(_First)
_failed: Final = msgspec.json.Decoder(_Failed)


class BadAnswer(msgspec.Struct, frozen=True, gc=False):
    """What is wrong with a whole answer, and what it reports all the same.

    `error` is the error that it holds: one of the client's doing is nothing wrong.
    """

    sickness: Sickness
    usage: Usage | None = None
    error: bytes = b""


class Habit:
    """Something that a worker's answers have always had, or not; `seen` are those that had it."""

    __slots__ = ("_broken", "seen")

    def __init__(self) -> None:
        self.seen = 0
        self._broken = False

    def breaks(self) -> bool:
        """Take an answer without it; return whether that is wrong of this worker."""
        if self.seen >= SURE and not self._broken:
            return True
        self._broken = True
        return False


class _Habits:
    """How the answers of one API end: whole ones with a reason, streams with one and `[DONE]`."""

    __slots__ = ("done", "reason", "whole")

    def __init__(self) -> None:
        self.done = Habit()
        self.reason = Habit()
        self.whole = Habit()


class AnswerCheck:
    """Judges the answers of one worker, which announced that it serves `models`."""

    __slots__ = ("_habits", "_models", "_names")

    def __init__(self, models: Iterable[str] = ()) -> None:
        self._models = frozenset(models)
        self._names = Habit()
        self._habits = {form: _Habits() for form in _KEYS}

    def judge_whole(self, form: Form, body: bytes, asked: bytes) -> Usage | BadAnswer | None:
        """Return what an answer that is no stream reports, or what is wrong with it; `asked` is the
        request's body.

        One pass over the answer, as for its usage alone. O(len(body)).
        """
        answer = read_answer(body)
        if answer is None or not _has_form(form, answer):
            return _judge_other(form, body)
        usage = usage_of(answer, None)
        if form == "responses" and answer.status == "failed":
            return BadAnswer("error", usage, body)
        if self._models and not self._is_known(answer.model, asked):
            return BadAnswer("wrong_model", usage)
        silent = usage is None or not usage.completion_tokens
        if silent and _is_silent(form, answer, body) and wants_tokens(asked):
            return BadAnswer("no_tokens", usage)
        habit = self._habits[form].whole
        if usage is not None and usage.stop:
            habit.seen += 1
        elif answer.choices is not None:
            if all(one.finish_reason for one in answer.choices):
                habit.seen += 1
            elif habit.breaks():
                return BadAnswer("unfinished", usage)
        return usage

    def judge_first(self, events: bytes, stream: EventStream, asked: bytes) -> Sickness:
        """Return what is wrong with the whole events with which a stream begins, which it has
        counted.
        """
        at = 0
        if stream.errors:
            return "error"
        if not events.startswith(DATA) or stream.torn:
            # Comments, a named event, what is no event, or a part of one that is too long.
            at = events.find(b"\ndata:") + 1
            if not at or stream.torn or _judge_event(events):
                return _judge_event(events, torn=stream.torn)
        end = events.find(b"\n", at)
        data = events[at + len(DATA) : end if end >= 0 else len(events)]
        try:
            first = _first.decode(data)
        except UNREADABLE:
            return _judge_event(events)
        inner = first.message or first.response
        model = first.model if inner is None else inner.model
        known = not self._models or self._is_known(model, asked)
        return "" if known else "wrong_model"

    def judge_end(self, form: Form, stream: EventStream, rest: bytes = b"") -> Sickness:
        """Return what is wrong with the end of a stream, `rest` being the event that no blank line
        followed.
        """
        habits = self._habits[form]
        if stream.errors:
            return "error"
        if stream.done and stream.reasoned and not rest:
            habits.done.seen += 1
            habits.reason.seen += 1
            return ""
        done, reasoned, tokens = stream.done, _is_reasoned(stream), stream.tokens
        if rest.strip() and not stream.torn:
            last = new_event_stream()
            last.feed(rest.rstrip(b"\r\n") + b"\n\n")
            if last.errors:
                return "error"
            if not last.done and _judge_event(rest):
                return "unfinished"
            done, reasoned = done or last.done, reasoned or _is_reasoned(last)
            tokens += last.tokens
        if not (tokens or reasoned):
            return "empty"
        whole = (done or reasoned) and _keeps(habits.reason, has=reasoned)
        if whole and form in _DONE_ENDS:
            whole = _keeps(habits.done, has=done)
        return "" if whole else "unfinished"

    def _is_known(self, model: object, asked: bytes) -> bool:
        """Return whether an answer may name this model: one that was announced, that was asked for,
        that resembles either, or any if this worker names what it likes, or was asked for none.
        """
        if not isinstance(model, str):
            return True
        if model in self._models:
            self._names.seen += 1
            return True
        wanted = model_of(asked) if model else ""
        if not wanted:
            return True
        known = any(resemble(model, one) for one in (wanted, *self._models))
        return _keeps(self._names, has=known)


def _keeps(habit: Habit, *, has: bool) -> bool:
    """Take an answer with it or without; return False if that is wrong of its worker."""
    if not has:
        return not habit.breaks()
    habit.seen += 1
    return True


def judge_start(body: bytes) -> Sickness:
    """Return what is wrong with the beginning of an answer that is too long to be looked into."""
    start = body[:64].lstrip()
    if not start or start.startswith(b"{"):
        return ""
    return "html" if start.startswith(_HTML) else "malformed"


def has_no_token(form: Form, stream: EventStream, events: bytes, asked: bytes) -> bool:
    """Return whether the whole of a short stream, which says that it is done, holds no output
    though that was asked for: it reports no token, or none of its events even begins a message.
    """
    if form not in _DONE_ENDS:
        return False
    usage = stream.usage
    if usage is None or usage.completion_tokens or usage.stop not in ENDED:
        return False
    counted = usage.prompt_tokens > 0 or b'"completion_tokens"' in events  # it may not have passed
    if b"content_filter" in events or (form == "completions" and not counted):
        return False
    if any(carries(data, roles=not counted) for data in datas(events)):
        return False
    return wants_tokens(asked)


def error_words(data: bytes) -> str:
    """Return the message of an error, short and on one line; "" for none that can be read."""
    try:
        failed = _failed.decode(data)
    except UNREADABLE:
        return ""
    error = failed.error
    text = error if isinstance(error, str) else error.message if error else failed.message
    return " ".join(text.split())[:_MOST_ERROR]


def _has_form(form: Form, answer: Answer) -> bool:
    if form in _DONE_ENDS:
        return bool(answer.choices)
    if form == "messages":
        return answer.content is not None
    if form == "responses":
        return answer.kind == "response" or answer.output is not None
    return answer.data is not None


def _judge_other(form: Form, body: bytes) -> BadAnswer | None:
    """Judge what does not read as the answer of its path: an error, nothing, or a dialect, which
    has what its path answers in a shape of its own.
    """
    if not body.strip():
        return BadAnswer("empty")
    try:
        held = JSON_OBJECT.decode(body)
    except UNREADABLE:
        return BadAnswer("html" if body.lstrip().startswith(_HTML) else "malformed")
    if any(bytes(held.get(key, b"")) not in _NONE for key in _KEYS[form]):
        return None
    flat = any(bytes(held.get(key, b"")) == b'"error"' for key in ("object", "type"))
    if flat or bytes(held.get("error", b"")) not in _NONE:
        return BadAnswer("error", error=body)
    return BadAnswer("malformed")


def _is_silent(form: Form, answer: Answer, body: bytes) -> bool:
    """Return whether an answer reports no token, says that it is done, and holds none."""
    if answer.usage is None or form == "embeddings":
        return False
    if 0 not in {answer.usage.completion_tokens, answer.usage.output_tokens}:
        return False
    if answer.choices is not None:
        done = all(ends_whole(one.finish_reason) for one in answer.choices)
        return done and not carries(body, roles=False)
    if form == "messages":
        return not answer.content and ends_whole(answer.stop_reason)
    return not answer.output and ends_whole(answer.status)


def _judge_event(events: bytes, *, torn: bool = False) -> Sickness:
    """Return whether the first event is one, of however many lines, or begins as one if `torn`."""
    if torn:
        return "" if events.lstrip().startswith((DATA, *FIELDS)) else "malformed"
    lines = events.replace(b"\r\n", b"\n").replace(b"\r", b"\n").lstrip(b"\n")
    block = lines.partition(b"\n\n")[0].split(b"\n")
    data = b"\n".join(one[len(DATA) :] for one in block if one.startswith(DATA)).strip()
    if not data:
        fields = all(one.startswith((DATA, *FIELDS)) or not one for one in block)
        return "" if fields else "malformed"
    if data == DONE:
        return ""
    try:
        JSON_OBJECT.decode(data)
    except UNREADABLE:
        return "malformed"
    return ""


def _is_reasoned(stream: EventStream) -> bool:
    if stream.reasoned:
        return True
    usage = stream.usage
    return usage is not None and usage.stop != ""
