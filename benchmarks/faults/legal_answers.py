"""Answers that are odd and legal, as engines of many dialects give them: none may be taken for bad.

Shapes: OpenAI's chat completions, completions, responses and embeddings, Anthropic's messages, as
vLLM, SGLang, llama.cpp, TensorRT-LLM, Ollama and gateways in front of them word them.
"""

import gzip
import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

import msgspec

Json = dict[str, Any]

PATHS: Final[Mapping[str, str]] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "embeddings": "/v1/embeddings",
}
TEXTS: Final = (
    "fine words",
    '{"error":{"message":"a text may say so","code":500}}',
    "<html><body>a page that was asked for</body></html>",
    "data: [DONE]\n\n",
    '"finish_reason":"stop"',
    '\N{SNOWMAN}\x00\\"',
    "x",
    "long " * 4_000,
    "very long " * 9_000,
)
REASONS: Final = ("stop", "length", "content_filter", "eos_token", "stop_sequence", "abort")
PIECE: Final = 400


class LegalAnswer(msgspec.Struct, frozen=True):
    """What is asked, and what is answered: a head and pieces of a body."""

    path: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    pieces: tuple[bytes, ...]


class Dialect:
    """How one engine words its answers, always."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.done = rng.random() < 0.9
        self.reasons = rng.random() < 0.95 or not self.done
        self.usage = rng.random() < 0.8
        self.roles = rng.random() < 0.9
        self.spaced = rng.random() < 0.3
        self.line = rng.choice(("\n", "\n", "\r\n"))
        self.names = rng.choice(("asked", "announced", "path", "version", "own", "none", "free"))
        self.comments = rng.random() < 0.3

    def model(self, asked: str) -> str | None:
        """Return the name in an answer."""
        return {
            "asked": asked,
            "announced": "base-model",
            "path": f"/models/{asked}.gguf",
            "version": f"{asked}-2026-01-01",
            "own": "ensemble",
            "none": None,
            "free": self._rng.choice(("ensemble", "backend-b", asked)),
        }[self.names]

    def dump(self, value: object) -> str:
        """Return JSON as this engine spaces it."""
        return json.dumps(value, separators=None if self.spaced else (",", ":"))

    def reason(self) -> str | None:
        """Return why an answer ended."""
        return self._rng.choice(REASONS) if self.reasons else None


class LegalAnswers:
    """Answers of one engine, drawn by `rng`; it announces `models`."""

    models: Final = ("base-model", "an-adapter")

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._dialect = Dialect(rng)
        self._number = 0

    def draw(self) -> LegalAnswer:
        """Return the next one."""
        rng = self._rng
        form = rng.choice(("chat", "chat", "chat", "completions", "completions", *PATHS))
        stream = form != "embeddings" and rng.random() < 0.5
        asked = rng.choice((*self.models, "an-alias"))
        self._number += 1
        text = f"question {self._number}"
        body: Json = {"model": asked, "stream": stream}
        messages = [{"role": "user", "content": text}]
        body |= {"messages": messages} if form in {"chat", "messages"} else {}
        body |= {"prompt": text} if form == "completions" else {}
        body |= {"input": text} if form in {"responses", "embeddings"} else {}
        body |= {"max_tokens": 8} if form == "messages" else {}
        make: Callable[[str], str] = {
            "chat": self._chat_stream if stream else self._chat,
            "completions": self._text_stream if stream else self._text,
            "messages": self._message_stream if stream else self._message,
            "responses": self._response_stream if stream else self._response,
            "embeddings": self._embedding,
        }[form]
        answer = make(asked).encode("utf-8", "replace")
        kind = b"text/event-stream; charset=utf-8" if stream else b"application/json"
        headers = [(b"content-type", kind)]
        if rng.random() < 0.02:
            answer = gzip.compress(answer, 1, mtime=0)
            headers.append((b"content-encoding", b"gzip"))
        return LegalAnswer(
            PATHS[form], json.dumps(body).encode(), tuple(headers), tuple(self._cut(answer))
        )

    def _cut(self, answer: bytes) -> list[bytes]:
        """Return an answer as reads may find it."""
        way = self._rng.random()
        if way < 0.4:
            return [answer]
        most = PIECE if len(answer) < 20_000 else 30_000
        pieces, at = [], 0
        while at < len(answer):
            size = self._rng.randrange(1, most)
            pieces.append(answer[at : at + size])
            at += size
        return [*pieces, b""] if way < 0.7 else pieces

    def _head(self, asked: str, kind: str) -> Json:
        model = self._dialect.model(asked)
        head: Json = {"id": "x", "object": kind, "created": 1}
        if model is not None:
            head["model"] = model
        if self._rng.random() < 0.1:
            head |= {"error": None, "system_fingerprint": "fp", "future": {"a": [1]}}
        return head

    def _because(self, reason: str) -> str | None:
        return reason if self._dialect.reasons else None

    def _logged(self) -> tuple[Json, int, str | None]:
        """Return what a choice says, how many tokens that are, and why it ended."""
        reason = self._dialect.reason()
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        ways: list[tuple[Json, int, str | None]] = [
            ({"content": self._rng.choice(TEXTS)}, 5, reason),
            ({"content": "y"}, 1, self._because("length")),
            ({"content": None, "tool_calls": [call]}, 7, self._because("tool_calls")),
            ({"content": None, "function_call": call["function"]}, 7, reason),
            ({"content": None, "refusal": ""}, 1, reason),
            ({"content": None, "refusal": "I will not"}, 4, reason),
            ({"content": None, "reasoning_content": "so it is"}, 9, reason),
            ({"content": None, "audio": {"data": "AA=="}}, 3, reason),
            # The end of the sequence came first: it counts as a token.
            ({"content": ""}, 1, self._because("stop")),
            ({"content": ""}, 0, self._because("content_filter")),
        ]
        return self._rng.choice(ways)

    def _usage(self, tokens: int) -> Json:
        return {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens}

    def _chat(self, asked: str) -> str:
        if self._rng.random() < 0.02:
            return self._refused()
        choices, total = [], 0
        for index in range(self._rng.choice((1, 1, 1, 3))):
            said, tokens, reason = self._logged()
            total += tokens
            message = {"role": "assistant", **said}
            choices.append(
                {"index": index, "message": message, "logprobs": None, "finish_reason": reason}
            )
        whole = self._head(asked, "chat.completion") | {"choices": choices}
        if self._dialect.usage:
            whole["usage"] = self._usage(total)
        return self._rng.choice(("", "", "\n \n")) + self._dialect.dump(whole)

    def _refused(self) -> str:
        """Return an error of the client's doing, with status 200 all the same."""
        nested = {"message": "the prompt is too long", "type": "BadRequestError", "code": 400}
        flat = {"object": "error", **nested}
        named = {"error": {"message": "no", "type": "invalid_request_error", "code": None}}
        return self._dialect.dump(self._rng.choice(({"error": nested}, flat, named)))

    def _events(self, events: list[Json | str], *, done: bool) -> str:
        line, rng = self._dialect.line, self._rng
        lines: list[str] = []
        if self._dialect.comments:
            lines.append(f": keep-alive{line}{line}")
        for event in events:
            if isinstance(event, str):
                lines.append(event.replace("\n", line))
            else:
                lines.append(f"data: {self._dialect.dump(event)}{line}{line}")
            if self._dialect.comments and rng.random() < 0.1:
                lines.append(f": ping{line}{line}")
        if done and self._dialect.done:
            lines.append(f"data: [DONE]{line}" + line * rng.choice((1, 1, 1, 0)))
        return "".join(lines)

    def _chat_stream(self, asked: str) -> str:
        if self._rng.random() < 0.02:
            return self._events([f"data: {self._refused()}\n\n"], done=True)
        head = self._head(asked, "chat.completion.chunk")
        events: list[Json | str] = []
        total = 0
        if self._rng.random() < 0.05:
            events.append(head | {"choices": [], "prompt_filter_results": []})
        for index in range(self._rng.choice((1, 1, 1, 3))):
            said, tokens, reason = self._logged()
            total += tokens
            delta: Json = {"role": "assistant", "content": ""}
            more = [delta, said] if self._dialect.roles else [{"role": "assistant", **said}]
            for one in more:
                choice = {"index": index, "delta": one, "finish_reason": None}
                events.append(head | {"choices": [choice]})
            if reason is not None:
                last = self._rng.choice(({}, {"content": ""}, {"content": None}))
                choice = {"index": index, "delta": last, "finish_reason": reason}
                events.append(head | {"choices": [choice]})
        if self._dialect.usage and self._rng.random() < 0.5:
            events.append(head | {"choices": [], "usage": self._usage(total)})
        return self._events(events, done=True)

    def _texts(self) -> list[tuple[str, int, str | None]]:
        reason = self._dialect.reason()
        one = self._rng.choice(
            [
                (self._rng.choice(TEXTS), 5, reason),
                ("y", 1, self._because("length")),
                ("", 1, self._because("stop")),
                # `echo` with `max_tokens` 0.
                ("the prompt", 0, self._because("length")),
            ]
        )
        return [one] * self._rng.choice((1, 1, 4))

    def _text(self, asked: str) -> str:
        said = self._texts()
        choices = [
            {"index": at, "text": text, "logprobs": None, "finish_reason": reason}
            for at, (text, _, reason) in enumerate(said)
        ]
        whole = self._head(asked, "text_completion") | {"choices": choices}
        if self._dialect.usage:
            whole["usage"] = self._usage(sum(tokens for _, tokens, _ in said))
        return self._dialect.dump(whole)

    def _text_stream(self, asked: str) -> str:
        said, head = self._texts(), self._head(asked, "text_completion")
        events: list[Json | str] = []
        for at, (text, _, reason) in enumerate(said):
            halves = [text] if self._rng.random() < 0.5 else [text[:3], text[3:]]
            for number, half in enumerate(halves):
                last = reason if number == len(halves) - 1 else None
                events.append(
                    head | {"choices": [{"index": at, "text": half, "finish_reason": last}]}
                )
        if self._dialect.usage:
            tokens = sum(tokens for _, tokens, _ in said)
            events.append(head | {"choices": [], "usage": self._usage(tokens)})
        return self._events(events, done=True)

    def _blocks(self) -> tuple[list[Json], str]:
        text = {"type": "text", "text": self._rng.choice(TEXTS)}
        tool = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
        ways: list[tuple[list[Json], str]] = [
            ([text], "end_turn"),
            ([text, tool], "tool_use"),
            ([tool], "tool_use"),
            ([], "refusal"),
            ([text], "max_tokens"),
            ([{"type": "thinking", "thinking": "hm"}], "end_turn"),
        ]
        return self._rng.choice(ways)

    def _message(self, asked: str) -> str:
        blocks, reason = self._blocks()
        head = self._head(asked, "") | {"type": "message", "role": "assistant"}
        usage = {"input_tokens": 9, "output_tokens": 4 if blocks else 0}
        return self._dialect.dump(head | {"content": blocks, "stop_reason": reason, "usage": usage})

    def _message_stream(self, asked: str) -> str:
        blocks, reason = self._blocks()
        head = self._head(asked, "") | {"type": "message", "content": [], "stop_reason": None}
        usage = {"input_tokens": 9, "output_tokens": 1}
        events: list[Json | str] = [
            self._named("message_start", {"message": head | {"usage": usage}}),
            self._named("ping", {}),
        ]
        for at, block in enumerate(blocks):
            events.append(self._named("content_block_start", {"index": at, "content_block": block}))
            delta = {"type": "text_delta", "text": "x"}
            events.append(self._named("content_block_delta", {"index": at, "delta": delta}))
            events.append(self._named("content_block_stop", {"index": at}))
        end = {"delta": {"stop_reason": reason, "stop_sequence": None}}
        events.append(self._named("message_delta", end | {"usage": {"output_tokens": 4}}))
        events.append(self._named("message_stop", {}))
        return self._events(events, done=False)

    def _named(self, name: str, data: Json) -> str:
        return f"event: {name}\ndata: {self._dialect.dump({'type': name, **data})}\n\n"

    def _made(self, asked: str) -> Json:
        call = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}
        text = {"type": "output_text", "text": self._rng.choice(TEXTS)}
        said = {"type": "message", "role": "assistant", "content": [text]}
        think = {"type": "reasoning", "summary": []}
        output, status, more = self._rng.choice(
            [
                ([said], "completed", {}),
                ([call], "completed", {}),
                ([think, said], "completed", {}),
                ([think], "incomplete", {"incomplete_details": {"reason": "max_output_tokens"}}),
                ([], "incomplete", {"incomplete_details": {"reason": "content_filter"}}),
            ]
        )
        usage = {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13}
        made = self._head(asked, "response") | {"error": None, "status": status}
        return made | {"output": output, "usage": usage} | more

    def _response(self, asked: str) -> str:
        if self._rng.random() < 0.1:
            queued = self._head(asked, "response") | {"status": "queued", "output": []}
            return self._dialect.dump(queued | {"usage": None, "error": None})
        return self._dialect.dump(self._made(asked))

    def _response_stream(self, asked: str) -> str:
        made = self._made(asked)
        begun = made | {"status": "in_progress", "output": [], "usage": None}
        begun.pop("incomplete_details", None)
        events: list[Json | str] = [
            self._named("response.created", {"response": begun}),
            self._named("response.output_text.delta", {"delta": "x"}),
            self._named(f"response.{made['status']}", {"response": made}),
        ]
        return self._events(events, done=False)

    def _embedding(self, asked: str) -> str:
        vector = self._rng.choice(
            ([0.1] * 8, "AAAAAA==", [1, 0, 1], [0.123456789] * self._rng.choice((1_000, 9_000)))
        )
        data = [
            {"object": "embedding", "index": at, "embedding": vector}
            for at in range(self._rng.choice((1, 1, 3)))
        ]
        usage = {"prompt_tokens": 9, "total_tokens": 9}
        return self._dialect.dump(self._head(asked, "list") | {"data": data, "usage": usage})
