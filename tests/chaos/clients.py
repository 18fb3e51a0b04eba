"""Clients that never stop asking, and judge every answer: whole, honestly failed, or wrong."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import httpx
import msgspec

from tests.chaos.answers.truth import MODEL, StreamReader, Truth, WholeAnswer, read_whole

R = TypeVar("R")

LONGEST_S = 60.0
"""An answer that takes longer hangs: no fault lasts 10 s."""
MAX_TOKENS = 24
FAMILIES = 12
HONEST_STATUSES = {502, 503, 504}
SHUT = "not connected"
POISON = 422, "poison"
"""Engines killed one after the other look as if a request on both had done it."""


class Prompts(msgspec.Struct, frozen=True):
    """Beginnings of prompts: `longer` times as long as else; another `mark`, other ones."""

    longer: int = 1
    mark: str = ""


PLAIN = Prompts()


class WrongAnswerError(Exception):
    """The answer is neither whole nor an honest failure."""


class Clients:
    """`count` clients of one front door; `wrong` says in words what must never happen: an answer
    that is not what `truth` says, too.
    """

    def __init__(
        self,
        url: str,
        rng: random.Random,
        truth: Truth,
        count: int = 6,
        prompts: Prompts = PLAIN,
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.doors_die = False
        """Whether their own front doors are killed, who then cannot say that a stream was cut."""

        self._url = url
        self._rng = rng
        self._truth = truth
        self._count = count
        self._prompts = prompts
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._http = httpx.AsyncClient(base_url=url, timeout=LONGEST_S)

    def start(self) -> None:
        self._stopping = False
        self._tasks = [asyncio.create_task(self._ask_for_ever()) for _ in range(self._count)]

    async def stop(self) -> None:
        """Let every client finish its request, and be idle."""
        self._stopping = True
        await asyncio.gather(*self._tasks)
        self._tasks = []

    async def close(self) -> None:
        await self.stop()
        await self._http.aclose()

    async def ask(self, url: str = "") -> str:
        """Send one request, return what came of it."""
        body = self.draw_request()
        started_s = time.monotonic()
        try:
            outcome = await (self._stream(url, body) if body["stream"] else self._post(url, body))
        except WrongAnswerError as error:
            outcome = "wrong"
            self.wrong.append(str(error))
        except httpx.TimeoutException as error:
            outcome = "hung"
            took_s = time.monotonic() - started_s
            self.wrong.append(f"no end after {took_s:.1f} s: {type(error).__name__}")
        except httpx.ConnectError as error:
            outcome = SHUT
            self.wrong.append(f"the front door is shut: {error}")
        except httpx.TransportError:
            # An abort in the middle: the only honest end of an answer that has begun.
            outcome = "cut"
        self.outcomes[outcome] += 1
        return outcome

    def draw_request(self) -> dict[str, Any]:
        """Return a chat of one of a few families, whose members share a long beginning."""
        rng = self._rng
        family = rng.randrange(FAMILIES)
        shared = f"Family {family}{self._prompts.mark} begins all its questions alike. "
        shared *= (2 + 3 * family) * self._prompts.longer
        body: dict[str, Any] = {
            "model": MODEL,
            "max_tokens": MAX_TOKENS,
            "ignore_eos": True,
            "stream": rng.random() < 0.5,
            "messages": [{"role": "user", "content": f"{shared}{rng.randrange(40)}?"}],
            # No two alike: those of one engine's death are not to blame for the next one's.
            "user": f"{rng.getrandbits(64):x}",
        }
        if family % 4 == 3:
            body["cache_salt"] = f"tenant-{family}"
        if body["stream"]:
            body["stream_options"] = {"include_usage": True}
        return body

    async def _ask_for_ever(self) -> None:
        while not self._stopping:
            outcome = await self.ask()
            await asyncio.sleep(0.02 if outcome == "whole" else 0.2)

    async def _post(self, url: str, body: dict[str, Any]) -> str:
        answer = await self._http.post(f"{url}/v1/chat/completions", json=body)
        if answer.status_code != httpx.codes.OK:
            return self._failed(answer.status_code, answer.content)
        await self._check(body, _reported(read_whole, _parsed(answer.content)))
        return "whole"

    async def _stream(self, url: str, body: dict[str, Any]) -> str:
        path = f"{url}/v1/chat/completions"
        async with self._http.stream("POST", path, json=body) as answer:
            if answer.status_code != httpx.codes.OK:
                return self._failed(answer.status_code, await answer.aread())
            read, done = StreamReader(), False
            try:
                async for line in answer.aiter_lines():
                    if not line or line.startswith(":"):
                        continue
                    if not line.startswith("data: ") or done:
                        raise WrongAnswerError(f"stray line in a stream: {line[:200]!r}")
                    if line == "data: [DONE]":
                        done = True
                        continue
                    _reported(read.take, _parsed(line.removeprefix("data: ").encode()))
            except httpx.TransportError:
                await self._check_begun(body, read)
                raise
        if not done or read.failed:
            raise WrongAnswerError(
                f"a stream ended as if it were whole (error event: {read.failed}, {read.whole()})"
            )
        await self._check(body, read.whole())
        return "whole"

    async def _check(self, body: dict[str, Any], answer: WholeAnswer | None) -> None:
        wanted = await self._truth.of(body)
        if answer != wanted:
            raise WrongAnswerError(f"the answer must be {wanted}, it was {answer}")

    async def _check_begun(self, body: dict[str, Any], read: StreamReader) -> None:
        """See that a stream that was cut was honest about it, and right as far as it went."""
        if read.text and not (read.failed or self.doors_die):
            raise WrongAnswerError(f"a stream was cut behind {read.text!r} without an error event")
        wanted = await self._truth.of(body)
        if not wanted.text.startswith(read.text):
            raise WrongAnswerError(f"the answer must be {wanted}, it began {read.text!r}")

    def _failed(self, status: int, content: bytes) -> str:
        error = _parsed(content).get("error")
        if not isinstance(error, dict) or not error["message"]:
            raise WrongAnswerError(f"status {status}: {content[:300]!r}")
        if status not in HONEST_STATUSES and (status, error.get("code")) != POISON:
            raise WrongAnswerError(f"status {status}: {content[:300]!r}")
        return f"{status} {error.get('code')}"


def _reported(read: Callable[[dict[str, Any]], R], answer: dict[str, Any]) -> R:
    try:
        return read(answer)
    except (KeyError, TypeError, ValueError) as error:
        raise WrongAnswerError(f"no answer: {str(answer)[:300]} ({error!r})") from error


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError as error:
        raise WrongAnswerError(f"no JSON: {content[:300]!r}") from error
    if not isinstance(value, dict):
        raise WrongAnswerError(f"no object: {content[:300]!r}")
    return value
