"""What it costs to tell siblings of a stream that its client named.

`python -m benchmarks.recovery.bench_named`: bytes at first and a second, and processor time.
"""

import asyncio
import json
import time
from typing import Final

from kvmesh.app.serve.stream_sharing import TELL_EVERY_S, StreamSharing
from kvmesh.core.engines.event_stream import new_event_stream
from kvmesh.transport.http.forward.resume import StreamKeep
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.request import Request

STREAMS: Final = 100
TOKENS: Final = 1000
PATH: Final = b"/v1/chat/completions"


class _NoChannel:
    """Streams are only told of: nothing is written."""

    def report(self, error: Exception, request_id: bytes) -> None:
        raise RuntimeError(request_id) from error


def event(token: int, prompt: list[int] | None = None) -> bytes:
    """Return one event of a chat, as vLLM sends it."""
    choice = {"index": 0, "delta": {"content": " word"}, "finish_reason": None}
    names = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    whole = {**names, "choices": [{**choice, "token_ids": [token]}], "prompt_token_ids": prompt}
    return b"data: %b\n\n" % json.dumps(whole).encode()


async def measure(prompt: int, tokens_s: int) -> None:
    """Print what streams of a prompt and a pace cost, in real order but without waiting."""
    text = " ".join(["word"] * prompt)
    messages = [{"role": "user", "content": text}]
    body = json.dumps({"model": "m", "messages": messages, "stream": True, "temperature": 0})
    keep = StreamKeep(1 << 30)
    sharing, told = StreamSharing(keep.named, "r0", ""), list[int]()
    sharing.publish = lambda message: told.append(len(message))
    streams = []
    for number in range(STREAMS):
        request = Request("POST", PATH, (), body.encode())
        exchange = Exchange(request, _NoChannel(), b"q")  # type: ignore[arg-type]
        resumption = keep.begin(request, "chat")
        assert resumption is not None
        resumption.sent(None, body.encode(), "http://w", True)
        sharing.begin(exchange, resumption, ("tenant", f"chat-{number:08x}"))
        stream, opening = new_event_stream(), event(1, list(range(100_000, 100_000 + prompt)))
        resumption.watch(stream)
        stream.feed(opening)
        resumption.opened(opening, "http://w")
        streams.append(stream)
    sharing.tell()
    first, ticks, spent_s = sum(told) / STREAMS, 0, 0.0
    told.clear()
    each = max(1, round(tokens_s * TELL_EVERY_S))
    for token in range(TOKENS):
        for stream in streams:
            stream.feed(event(100_000 + token))
        if token % each == each - 1:
            began = time.process_time()
            sharing.tell()
            spent_s += time.process_time() - began
            ticks += 1
    a_second = sum(told) / STREAMS * tokens_s / TOKENS
    print(
        f"{prompt} prompt tokens, {tokens_s} tokens/s: {first:.0f} B at first, {a_second:.0f} B/s, "
        f"{spent_s / ticks / STREAMS * 1e6:.1f} us a stream each {1000 * TELL_EVERY_S:.0f} ms, "
        f"{keep.named.used / STREAMS:.0f} B kept behind {TOKENS} tokens"
    )


async def main() -> None:
    """Measure prompts and paces."""
    for prompt, tokens_s in ((1000, 100), (8000, 100), (1000, 20)):
        await measure(prompt, tokens_s)


if __name__ == "__main__":
    asyncio.run(main())
