"""What each answer must say: a simulated engine's text is a function of its prompt alone."""

import asyncio
from typing import Any, Final

import httpx
import msgspec

MODEL: Final = "mock"


class WholeAnswer(msgspec.Struct, frozen=True):
    """What came of a request: the text, the tokens it has and its prompt had, why it ended."""

    text: str
    model: str
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int


class Truth:
    """Asks an engine beside the mesh, which nothing strikes; each prompt once."""

    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=60.0)
        self._known: dict[str, asyncio.Task[WholeAnswer]] = {}

    async def of(self, body: dict[str, Any]) -> WholeAnswer:
        """Return what the answer to `body` must be."""
        asked = {name: value for name, value in body.items() if name in _TELLS}
        key = msgspec.json.encode(asked).decode()
        if key not in self._known:
            self._known[key] = asyncio.create_task(self._ask(asked))
        return await self._known[key]

    async def close(self) -> None:
        for one in self._known.values():
            one.cancel()
        await asyncio.gather(*self._known.values(), return_exceptions=True)
        await self._http.aclose()

    async def _ask(self, body: dict[str, Any]) -> WholeAnswer:
        answer = await self._http.post("/v1/chat/completions", json=body)
        return read_whole(answer.raise_for_status().json())


_TELLS: Final = frozenset({"model", "messages", "max_tokens", "ignore_eos", "cache_salt"})
"""The fields of a request that its answer depends on."""


def read_whole(answer: dict[str, Any]) -> WholeAnswer:
    """Return what a whole answer says. Raises `KeyError`, `IndexError`, `TypeError`."""
    [choice] = answer["choices"]
    usage = answer["usage"]
    return WholeAnswer(
        choice["message"]["content"],
        answer["model"],
        choice["finish_reason"],
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )


class StreamReader:
    """Puts a stream's chunks together. Raises `KeyError`, `TypeError` for what is no chunk."""

    def __init__(self) -> None:
        self.text = ""
        self.failed = False
        self._ids: set[str] = set()
        self._models: set[str] = set()
        self._finish: str | None = None
        self._usage: dict[str, int] | None = None

    def take(self, chunk: dict[str, Any]) -> None:
        """Add a chunk, or note that it tells of an error."""
        if "error" in chunk:
            self.failed = True
            return
        self._ids.add(chunk["id"])
        self._models.add(chunk["model"])
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk["choices"]:
            self.text += choice["delta"].get("content") or ""
            self._finish = choice["finish_reason"] or self._finish

    def whole(self) -> WholeAnswer | None:
        """Return the answer; None where chunks lack, or are of two answers."""
        if self._usage is None or len(self._ids) != 1 or len(self._models) != 1:
            return None
        [model] = self._models
        prompt, completion = (self._usage[one] for one in ("prompt_tokens", "completion_tokens"))
        return WholeAnswer(self.text, model, self._finish, prompt, completion)
