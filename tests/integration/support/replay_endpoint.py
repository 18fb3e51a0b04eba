"""A small OpenAI endpoint on a real socket: workers with prefix caches, and faults on demand."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import takewhile

import msgspec

BLOCK = 16
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ReplayEndpoint:
    """Serves chat, completions, models and cache resets.

    A request goes to its worker round robin, or with router mode kv to the one that holds most of
    its prompt. Each uncached block takes 0.2 ms, each token `token_s`. `faults` maps the number
    of a generation request to what goes wrong with it.
    """

    def __init__(self, *, workers: int = 4, token_s: float = 0.001) -> None:
        self.caches: list[set[str]] = [set() for _ in range(workers)]
        self.faults: dict[int, str] = {}
        self.seen: list[tuple[str, dict[str, str], dict[str, object]]] = []
        self.resets = 0
        self.models = ["mock"]
        self.models_body = b""
        self.open = 0
        self.most_open = 0
        self.closed_early = 0
        self.url = ""
        self._token_s = token_s
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self.serve_one(reader, writer):
                pass
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        self._writers.discard(writer)
        self._tasks.discard(task)

    async def close(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.gather(*self._tasks)

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        pairs = (line.split(": ", 1) for line in head[1:] if line)
        headers = {name.lower(): value for name, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return await self.answer(f"{method} {path}", headers, body, (reader, writer))

    async def answer(self, what: str, headers: dict[str, str], body: bytes, client: Client) -> bool:
        _, writer = client
        if what == "GET /v1/models":
            models = {"object": "list", "data": [{"id": name} for name in self.models]}
            return respond(writer, 200, self.models_body or msgspec.json.encode(models))
        if what == "POST /reset_prefix_cache":
            self.resets += 1
            return respond(writer, 200, b"")
        if what not in {"POST /v1/chat/completions", "POST /v1/completions"}:
            return respond(writer, 404, b"no such path")
        request = msgspec.json.decode(body)
        self.seen.append((what, headers, request))
        fault = self.faults.get(len(self.seen) - 1, "")
        if fault == "503":
            return respond(writer, 503, b'{"error": {"message": "all workers are busy"}}')
        if fault == "json":
            return respond(writer, 200, b"{}", "application/json")
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            return await self.generate(headers, request, client, fault)
        except ConnectionError:
            self.closed_early += 1
            raise
        finally:
            self.open -= 1

    async def generate(
        self,
        headers: Mapping[str, str],
        request: Mapping[str, object],
        client: Client,
        fault: str,
    ) -> bool:
        reader, writer = client
        blocks = prompt_blocks(request)
        overlaps = [len(list(takewhile(cache.__contains__, blocks))) for cache in self.caches]
        worker = self._turn % len(self.caches)
        if headers.get("x-kvmesh-router-mode") == "kv" and max(overlaps):
            worker = overlaps.index(max(overlaps))
        self._turn += 1
        self.caches[worker].update(blocks)
        uncached = len(blocks) - overlaps[worker]
        await asyncio.sleep(0.0002 * uncached)
        if fault == "stall":
            await reader.read()
            raise ConnectionError
        bucket = headers.get("x-kvmesh-bucket", "default")
        start(writer, f"w{worker}", bucket, overlaps[worker])
        count = int(str(request["max_tokens"]))
        send(writer, chunk(""))
        for number in range(count):
            await asyncio.sleep(self._token_s)
            if fault == "cut" and number == 1:
                writer.transport.abort()
                return False
            if fault == "stream error" and number == 1:
                send(writer, {"error": {"message": "engine died"}})
            send(
                writer, chunk("x", "length" if number == count - 1 and fault != "no end" else None)
            )
            await writer.drain()
        if fault not in {"no usage", "no end"}:
            send(writer, usage(BLOCK * len(blocks), BLOCK * overlaps[worker], count))
        writer.write(frame(b"" if fault == "no end" else b"data: [DONE]\n\n") + b"0\r\n\r\n")
        return True


def prompt_blocks(request: Mapping[str, object]) -> list[str]:
    prompt = request.get("prompt")
    if isinstance(prompt, list):
        prompt = "".join(chr(token % 0xD800) for token in prompt)
    if not isinstance(prompt, str):
        messages = msgspec.convert(request["messages"], list[dict[str, str]])
        prompt = messages[0]["content"]
    whole = len(prompt) // BLOCK
    return [prompt[: BLOCK * (number + 1)] for number in range(whole)]


def chunk(text: str, finish: str | None = None) -> dict[str, object]:
    delta = {"content": text} if text else {"role": "assistant", "content": ""}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def usage(prompt: int, cached: int, output: int) -> dict[str, object]:
    details = {"cached_tokens": cached}
    counts = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "prompt_tokens_details": details,
    }
    return {"choices": [], "usage": counts}


def respond(
    writer: asyncio.StreamWriter, status: int, body: bytes, kind: str = "application/json"
) -> bool:
    head = f"HTTP/1.1 {status} x\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return True


def start(writer: asyncio.StreamWriter, worker: str, bucket: str, overlap: int) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        b"transfer-encoding: chunked\r\n"
        + f"x-kvmesh-worker: {worker}\r\nx-kvmesh-router: r0\r\n".encode()
        + f"x-kvmesh-bucket: {bucket}\r\nx-kvmesh-overlap-blocks: {overlap}\r\n\r\n".encode()
    )


def send(writer: asyncio.StreamWriter, event: Mapping[str, object]) -> None:
    writer.write(frame(b"data: " + msgspec.json.encode(event) + b"\n\n"))


def frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


@asynccontextmanager
async def serve(endpoint: ReplayEndpoint) -> AsyncIterator[str]:
    server = await asyncio.start_server(endpoint.accept, "127.0.0.1", 0, limit=1 << 20)
    try:
        endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield endpoint.url
    finally:
        server.close()
        await endpoint.close()
        await server.wait_closed()
