"""Clients of `bench_faults`: what they send, and what counts as a whole answer."""

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import httpx
import msgspec

from benchmarks.faults.cells import Answer, Load

PATH: Final = "/v1/chat/completions"
MODEL: Final = "m"
MAX_TOKENS: Final = 16
DONE: Final = b"data: [DONE]"
DATA: Final = b"data: "
SYSTEM: Final = "You answer for bakery {topic}, briefly and kindly. "
"""Repeated into some 65 blocks that all requests of a cell share."""
REPEATS: Final = 20


class _Said(msgspec.Struct, frozen=True):
    content: str | None = None


_NOTHING: Final = _Said()


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    message: _Said = _NOTHING
    delta: _Said = _NOTHING


class _Whole(msgspec.Struct):
    choices: list[_Choice] = []
    error: object = None
    model: str = MODEL


def chat(
    topic: str, question: str, *, stream: bool = False, tokens: int | None = None
) -> dict[str, object]:
    """Return a chat whose system prompt all of one `topic` share."""
    messages = [
        {"role": "system", "content": SYSTEM.format(topic=topic) * REPEATS},
        {"role": "user", "content": question},
    ]
    most = MAX_TOKENS if tokens is None else tokens
    return {"model": MODEL, "max_tokens": most, "stream": stream, "messages": messages}


def problem_of_whole(body: bytes) -> str:
    """Return what is wrong with the body of a 200; "" when it is a whole chat completion."""
    try:
        found = msgspec.json.decode(body, type=_Whole)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "garbage"
    if found.error is not None or not all(one.finish_reason for one in found.choices):
        return "not whole"
    return _problem_of_text([found], "".join(one.message.content or "" for one in found.choices))


def problem_of_stream(body: bytes) -> str:
    """Return what is wrong with the body of a 200; "" when a stream finished and said so."""
    events = [line for line in body.splitlines() if line.startswith(DATA)]
    if not events or events.pop() != DONE:
        return "not whole"
    try:
        chunks = [msgspec.json.decode(event[len(DATA) :], type=_Whole) for event in events]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "garbage"
    if any(chunk.error is not None for chunk in chunks):
        return "error in stream"
    choices = [one for chunk in chunks for one in chunk.choices]
    if not any(one.finish_reason for one in choices):
        return "not whole"
    return _problem_of_text(chunks, "".join(one.delta.content or "" for one in choices))


def _problem_of_text(parts: Sequence[_Whole], text: str) -> str:
    if any(part.model != MODEL for part in parts):
        return "another model"
    return "" if text else "no text"


async def ask(client: httpx.AsyncClient, body: dict[str, Any], timeout_s: float) -> Answer:
    """Send one chat and return how it went."""
    began = time.perf_counter()
    try:
        async with asyncio.timeout(timeout_s):
            response = await client.post(PATH, json=body)
    except TimeoutError:
        problem = "timeout"
    except httpx.ConnectError:
        problem = "refused"
    except httpx.HTTPError:
        problem = "cut"
    else:
        judge = problem_of_stream if body.get("stream") else problem_of_whole
        is_ok = response.status_code == httpx.codes.OK
        problem = judge(response.content) if is_ok else str(response.status_code)
    return Answer((time.perf_counter() - began) * 1000, problem)


async def send(
    client: httpx.AsyncClient, load: Load, make: Callable[[int], dict[str, Any]]
) -> list[Answer]:
    """Send all requests of a load, `load.in_flight` at once, and return how each went."""
    numbers = iter(range(load.requests))
    answers: list[Answer] = []

    async def one_client() -> None:
        for number in numbers:
            answers.append(await ask(client, make(number), load.timeout_s))
            await asyncio.sleep(load.pause_s)

    await asyncio.gather(*(one_client() for _ in range(load.in_flight)))
    return answers


async def send_at_rate(
    client: httpx.AsyncClient,
    rate: float,
    make: Callable[[int], dict[str, Any]],
    *,
    timeout_s: float,
    until: Callable[[], bool],
) -> list[Answer]:
    """Send `rate` requests a second, whatever becomes of them, until told to end; then wait."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    running: list[asyncio.Task[Answer]] = []
    for number in itertools.count():
        if until():
            break
        running.append(asyncio.create_task(ask(client, make(number), timeout_s)))
        due += 1 / rate
        await asyncio.sleep(max(0.0, due - loop.time()))
    return list(await asyncio.gather(*running))


def make_client(port: int) -> httpx.AsyncClient:
    """Return a client of the door on `port`, without proxies; `ask` bounds the time."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    url = f"http://127.0.0.1:{port}"
    return httpx.AsyncClient(
        base_url=url, trust_env=False, timeout=httpx.Timeout(None), limits=limits
    )
