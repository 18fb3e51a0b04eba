"""What is seen of a response that a gateway passes on: counted, read and judged behind its back."""

from kvmesh._native import EventStream
from kvmesh.core.engines.event_stream import new_event_stream
from kvmesh.core.engines.sse import Usage, find_usage
from kvmesh.core.members.answer_check import AnswerCheck, BadAnswer, Form, Sickness
from kvmesh.transport.http.forward.passed_answer import MAX_SCANNED_BYTES
from kvmesh.transport.http.forward.plan import GROW_TOKENS


class SeenAnswer:
    """One response. `stream` counts its events, None of one that is none; `check` judges it, None:
    it is believed. Of any other its first MiB is kept if it `reads_usage`.
    """

    __slots__ = ("_reads_usage", "_whole", "check", "stream")

    def __init__(self, *, reads_usage: bool) -> None:
        self.check: AnswerCheck | None = None
        self.stream: EventStream | None = None
        self._reads_usage = reads_usage
        self._whole: bytes | None = b""

    def begin_stream(self) -> None:
        """Take that it is an event stream."""
        self.stream = new_event_stream()

    def feed(self, data: bytes) -> int:
        """Take a piece of it; return the tokens so far where they are to be told, else 0."""
        stream = self.stream
        if stream is None:
            if self._reads_usage and self._whole is not None:
                short = len(self._whole) + len(data) <= MAX_SCANNED_BYTES
                self._whole = self._whole + data if short else None
            return 0
        stream.feed(data)
        if stream.tokens < stream.due:
            return 0
        stream.due = stream.tokens + GROW_TOKENS
        return stream.tokens

    def end(self) -> int:
        """Take that no more comes; return the tokens of a stream whose length its engine does not
        report, where some were not told yet, else 0.
        """
        stream = self.stream
        if stream is None:
            return 0
        stream.flush()
        usage, told = stream.usage, stream.due - GROW_TOKENS
        untold = stream.due > 1 and stream.tokens > told
        return stream.tokens if untold and not (usage and usage.completion_tokens) else 0

    def usage(self) -> Usage | None:
        """Return what the worker reported of its tokens, if it did."""
        if self.stream is not None:
            return self.stream.usage
        return find_usage(self._whole) if self._whole else None

    def judge(self, form: Form) -> Sickness:
        """Return what is wrong with a response all of which was told. Its model is not looked at:
        the body that asked for one is gone.
        """
        check, stream = self.check, self.stream
        if check is None or not form:
            return ""
        if stream is not None:
            return check.judge_end(form, stream, stream.flush())
        if self._whole is None or not self._reads_usage:
            return ""
        found = check.judge_whole(form, self._whole, b"")
        return found.sickness if isinstance(found, BadAnswer) else ""

    def error(self) -> bytes:
        """Return the error it ends with, of what is no stream all of it; b"" for none."""
        stream = self.stream
        return (self._whole or b"") if stream is None else stream.error if stream.errors else b""
