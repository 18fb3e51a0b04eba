"""Reads a streamed OpenAI answer: when its tokens came, what it says it used, how it ended."""

import msgspec

from kvmesh.transport.http.fetch import ERROR_BYTES


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


_decoder = msgspec.json.Decoder(_Chunk)


class AnswerReader:
    """Fed with the body's bytes as they come; one per request.

    A chunk counts when it carries text, reasoning or a tool call: the empty first chunk that
    only names the role is no token. A chunk costs 2 us.
    """

    def __init__(self) -> None:
        self.token_times: list[float] = []
        """Seconds, of each chunk that carried tokens."""
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        """As the server counted; 0 without usage."""
        self.texts: list[str] = []
        """The answer's text, in pieces as they came."""
        self.stream_error = ""
        self.complete = False
        """Whether `[DONE]` or a finish reason was seen."""
        self._rest = b""

    def feed(self, data: bytes, now: float) -> None:
        """Take the next bytes of the body, split anywhere, received at `now` seconds."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line[5:].strip(), now)

    def _take(self, payload: bytes, now: float) -> None:
        if payload == b"[DONE]":
            self.complete = True
            return
        try:
            chunk = _decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self.stream_error = self.stream_error or f"malformed chunk: {error}"
            return
        if chunk.error is not None:
            self.stream_error = msgspec.json.encode(chunk.error)[:ERROR_BYTES].decode(
                "utf-8", "replace"
            )
        if any(_has_token(choice) for choice in chunk.choices):
            self.token_times.append(now)
            self.texts += [_text(choice) for choice in chunk.choices]
        if any(choice.finish_reason for choice in chunk.choices):
            self.complete = True
        if chunk.usage is not None:
            self._take_usage(chunk.usage)

    def _take_usage(self, usage: _Usage) -> None:
        details = usage.prompt_tokens_details
        self.prompt_tokens = usage.prompt_tokens
        self.output_tokens = usage.completion_tokens
        self.cached_tokens = (details.cached_tokens or 0) if details else 0


def _has_token(choice: _Choice) -> bool:
    delta = choice.delta
    if delta is None:
        return bool(choice.text)
    return bool(delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)


def _text(choice: _Choice) -> str:
    delta = choice.delta
    return (choice.text if delta is None else delta.content) or ""
