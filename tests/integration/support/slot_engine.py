"""An engine like llama.cpp's server: no KV events, a few slots of which each keeps one prompt.

A request takes, of the slots that are free, the one whose tokens begin most like its prompt, where
that is more than a tenth of the prompt (`--slot-prompt-similarity`), else the one used least
recently. What the slot held beyond the common beginning is gone. One prompt is computed at a time;
a token of an answer takes as long as ten of a prompt.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence

import msgspec

from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer

SIMILARITY = 0.1
TOKEN_PREFILLS = 10
EVENTS = ((b"content-type", b"text/event-stream"),)
TOKEN = (
    b'data: {"object":"text_completion","model":"mock",'
    b'"choices":[{"index":0,"text":"x","finish_reason":null}]}\n\n'
)


class Slot(msgspec.Struct):
    """`used` is the number of the request that left it last, -1: none."""

    tokens: list[int] = []
    used: int = -1
    busy: bool = False


class SlotEngine:
    """Serves completions of token ids, each answered with as many tokens as it asks for.

    `reused` has (prompt tokens, cached tokens) of each request, in order. `usage` False: answers
    have `timings`, and no usage.
    """

    def __init__(
        self, slots: int = 4, n_ctx: int = 4096, *, prefill_ms: float = 0.0, usage: bool = True
    ) -> None:
        self.slots = [Slot() for _ in range(slots)]
        self.n_ctx = n_ctx
        self.reused: list[tuple[int, int]] = []
        self.url = ""
        self._usage = usage
        self._prefill_s = prefill_ms / 1000.0
        self._token_s = TOKEN_PREFILLS * self._prefill_s
        self._ended = 0
        self._deferred: deque[asyncio.Future[Slot]] = deque()
        self._waiting: deque[list[int]] = deque()
        self._computing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.server = HttpServer(self._serve)

    def take(self, tokens: list[int]) -> Slot | None:
        """Return the slot that a prompt takes, None where all are busy."""
        free = [slot for slot in self.slots if not slot.busy]
        best, most = None, SIMILARITY
        for slot in free:
            share = common(slot.tokens, tokens) / len(tokens)
            if share > most:
                best, most = slot, share
        if best is None and free:
            oldest = min(slot.used for slot in free)
            best = [slot for slot in free if slot.used == oldest][-1]
        if best is not None:
            best.busy = True
        return best

    def leave(self, slot: Slot) -> None:
        """Give a slot back, or to who waits for one."""
        slot.busy = False
        slot.used = self._ended = self._ended + 1
        while self._deferred:
            waiting, tokens = self._deferred.popleft(), self._waiting.popleft()
            if not waiting.cancelled():
                found = self.take(tokens)
                assert found is not None
                waiting.set_result(found)
                return

    def _serve(self, exchange: Exchange) -> None:
        path = exchange.request.path
        slots = [
            {"id": number, "n_ctx": self.n_ctx, "is_processing": slot.busy}
            for number, slot in enumerate(self.slots)
        ]
        pages: dict[str, object] = {
            "/health": {"status": "ok"},
            "/v1/models": {"object": "list", "data": [{"id": "mock"}]},
            "/slots": slots,
            "/props": {
                "default_generation_settings": {"n_ctx": self.n_ctx},
                "total_slots": len(slots),
                "build_info": "b7000-0",
            },
        }
        if path == "/v1/completions":
            self._begin(exchange, exchange.request.body)
        elif path in pages:
            exchange.respond(200, msgspec.json.encode(pages[path]))
        else:
            exchange.respond(404, b"{}")

    def _begin(self, exchange: Exchange, body: bytes) -> None:
        task = asyncio.ensure_future(self._answer(exchange, msgspec.json.decode(body)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, exchange: Exchange, asked: dict[str, object]) -> None:
        tokens = msgspec.convert(asked["prompt"], list[int])
        slot = self.take(tokens)
        if slot is None:
            waiting: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
            self._deferred.append(waiting)
            self._waiting.append(tokens)
            slot = await waiting
        cached = min(common(slot.tokens, tokens), len(tokens) - 1)
        slot.tokens = list(tokens)
        async with self._computing:
            await asyncio.sleep((len(tokens) - cached) * self._prefill_s)
        count = msgspec.convert(asked.get("max_tokens", 1), int)
        if asked.get("stream"):
            exchange.start(200, EVENTS)
        for _ in range(count):
            if asked.get("stream"):
                exchange.write(TOKEN)
            await asyncio.sleep(self._token_s)
        slot.tokens += answer_of(tokens, count)
        self.reused.append((len(tokens), cached))
        self.leave(slot)
        whole = msgspec.json.encode(self._whole(len(tokens), cached, count))
        if asked.get("stream"):
            exchange.write(b"data: " + whole + b"\n\ndata: [DONE]\n\n")
            exchange.end()
        else:
            exchange.respond(200, whole)

    def _whole(self, prompt: int, cached: int, count: int) -> dict[str, object]:
        choice = {"index": 0, "text": "x" * count, "finish_reason": "length"}
        timings = {"cache_n": cached, "prompt_n": prompt - cached, "predicted_n": count}
        whole = {"object": "text_completion", "model": "mock", "choices": [choice]}
        if not self._usage:
            return {**whole, "timings": timings}
        details = {"cached_tokens": cached}
        usage = {"prompt_tokens": prompt, "completion_tokens": count}
        return {**whole, "usage": {**usage, "prompt_tokens_details": details}, "timings": timings}


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two prompts begin with in common."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def answer_of(tokens: Sequence[int], count: int) -> list[int]:
    """Return the tokens of an answer, which its client sends again."""
    return [(tokens[-1] * 31 + number) % 30_000 for number in range(count)]


@contextlib.asynccontextmanager
async def slot_engines(
    count: int, slots: int, *, n_ctx: int = 4096, prefill_ms: float = 0.0, usage: bool = True
) -> AsyncIterator[list[SlotEngine]]:
    """Serve some engines until the block ends."""
    engines = [SlotEngine(slots, n_ctx, prefill_ms=prefill_ms, usage=usage) for _ in range(count)]
    for engine in engines:
        await engine.server.start("127.0.0.1", 0)
        engine.url = f"http://127.0.0.1:{engine.server.port}"
    try:
        yield engines
    finally:
        for engine in engines:
            await asyncio.wait_for(engine.server.close(), 60)
