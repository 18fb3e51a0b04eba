"""A client of one stream, and all that it was told."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import msgspec

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
FORMS: Mapping[str, Mapping[str, Any]] = {
    "chat": {"temperature": 0},
    "sampled chat": {"temperature": 0.7},
    "chat with tools": {"temperature": 0, "tools": [TOOL]},
    "chat with stop strings": {"temperature": 0, "stop": ["never said"]},
    "chat with ids": {"temperature": 0, "return_token_ids": True},
    "completion": {"temperature": 0, "prompt": True},
    "completion with ids": {"prompt": True, "return_token_ids": True},
}
"""Forms that go on when their engine is lost; with `prompt` it is asked as a completion."""

WORDS = {"chat": "exact", "sampled chat": "continued", "completion with ids": "continued"}
"""What `x-kvmesh-resumable` says of each, "exact" of all others."""

_NO_HEADERS: Mapping[str, str] = {}


class Told(msgspec.Struct):
    """What a client got. `broken`: the connection ended in the middle of the answer."""

    status: int = 0
    head: Mapping[str, str] = {}
    texts: list[str] = []
    token_ids: list[int] = []
    prompt_ids: list[int] = []
    reason: str = ""
    usage: Any = None
    dones: int = 0
    errors: list[Any] = []
    names: set[tuple[str, int, str, str]] = set()
    roles: int = 0
    broken: bool = False

    @property
    def said(self) -> tuple[object, ...]:
        """Return all that has to be as in an undisturbed run; what was cached need not."""
        usage = dict(self.usage) if isinstance(self.usage, dict) else {}
        usage.pop("prompt_tokens_details", None)
        text = "".join(self.texts)
        ended = self.reason, usage, self.dones, len(self.names), self.roles, self.broken
        return text, self.token_ids, self.prompt_ids, *ended, self.errors

    @property
    def worker(self) -> str:
        return self.head["x-kvmesh-worker"]

    @property
    def resumable(self) -> str:
        return self.head.get("x-kvmesh-resumable", "")

    def take(self, line: str) -> None:
        """Take one line of the stream."""
        if not line.startswith("data: "):
            assert not line or line.startswith(":"), line
            return
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            self.dones += 1
            return
        event = json.loads(data)
        if "error" in event:
            self.errors.append(event["error"])
            return
        self.names.add((event["id"], event["created"], event["model"], event["object"]))
        self.usage = event.get("usage") or self.usage
        self.prompt_ids += event.get("prompt_token_ids") or []
        for choice in event["choices"]:
            delta = choice.get("delta") or {}
            self.roles += "role" in delta
            self.prompt_ids += choice.get("prompt_token_ids") or []
            self.token_ids += choice.get("token_ids") or []
            if text := choice.get("text") or delta.get("content") or "":
                self.texts.append(text)
            self.reason = choice["finish_reason"] or self.reason


def form(
    name: str, number: int = 0, tokens: int = 40, *, behind: str = ""
) -> tuple[str, dict[str, Any]]:
    """Return path and body of a stream of this form of `FORMS`; prompts differ by `number`,
    `behind` which the same text may stand.
    """
    usage = {"stream_options": {"include_usage": True}}
    return asked({**usage, **FORMS[name]}, number, tokens, behind)


def asked(
    body: Mapping[str, Any], number: int, tokens: int, behind: str = ""
) -> tuple[str, dict[str, Any]]:
    """Return path and body of a stream of so many tokens, a completion if `body` has a prompt."""
    text = f"story {number} of many, told slowly{behind}"
    whole = {"model": "mock", "stream": True, "ignore_eos": True, "max_tokens": tokens, **body}
    if whole.get("prompt"):
        return COMPLETIONS, {**whole, "prompt": text}
    return CHAT, {**whole, "messages": [{"role": "user", "content": text}]}


async def tell(
    client: httpx.AsyncClient,
    path: str,
    body: Mapping[str, Any],
    on_text: Callable[[Told], object] | None = None,
    headers: Mapping[str, str] = _NO_HEADERS,
) -> Told:
    """Return a stream read to its end; `on_text` is called for each line."""
    told = Told()
    try:
        async with client.stream("POST", path, json=body, headers=headers) as answer:
            told.status, told.head = answer.status_code, dict(answer.headers)
            if answer.status_code != httpx.codes.OK:
                told.errors.append((await answer.aread()).decode())
                return told
            async for line in answer.aiter_lines():
                told.take(line)
                if on_text is not None:
                    on_text(told)
    except httpx.RemoteProtocolError:
        told.broken = True
    return told
