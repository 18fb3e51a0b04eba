"""What the sender of `kvmesh replay` costs: it shares its machine with what it measures.

The same streams, from the same server in a process of its own, read by the replay client and by
httpx (the usual choice). Figures are this process's processor time.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Coroutine
from functools import partial
from importlib.metadata import version
from multiprocessing.connection import Connection

import httpx
import msgspec
import uvloop

from benchmarks.measure import Candidate, Sample, compare, parse_options, quiet_collector, report
from kvmesh.transport.http.upstream.client import UpstreamOptions, UpstreamPool
from kvmesh_lab.replay.client import ReplayClient

PATH = "/v1/chat/completions"
HEADERS = [(b"content-type", b"application/json")]
PAUSE_S = 0.002


def main() -> None:
    options = parse_options("Processor time of the replay sender per request and per chunk.")
    streams = options.size(full=200, quick=50)
    parent, child = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(child,), daemon=True)
    server.start()
    url: str = parent.recv()
    for chunks, prompt_tokens in ((1, 100), (1, 12_000), (100, 100)):
        body = request_body(chunks, prompt_tokens)
        candidates: dict[str, Candidate] = {
            "kvmesh replay": partial(
                cost, partial(with_replay, url, body, streams), chunks, streams
            ),
            f"httpx {version('httpx')}": partial(
                cost, partial(with_httpx, url, body, streams), chunks, streams
            ),
        }
        title = f"{streams} streams of {chunks} chunks at once, prompts of {prompt_tokens:,} tokens"
        report(compare(title, candidates, options.rounds), options)
    server.terminate()
    server.join()


def request_body(chunks: int, prompt_tokens: int) -> bytes:
    messages = [{"role": "user", "content": "x" * prompt_tokens}]
    return msgspec.json.encode({"model": "m", "max_tokens": chunks, "messages": messages})


def cost(work: Callable[[], Coroutine[None, None, float]], chunks: int, streams: int) -> Sample:
    with quiet_collector():
        used_us = uvloop.run(work())
    return {"cpu us per request": used_us / streams, "cpu us per chunk": used_us / streams / chunks}


async def with_replay(url: str, body: bytes, streams: int) -> float:
    """Return the processor time of all streams, us; the client is made before."""
    pool = UpstreamPool(options=UpstreamOptions(connect_timeout_s=10))
    client = ReplayClient(pool, url, timeout_s=60)
    start = time.process_time_ns()
    exchanges = await asyncio.gather(*(client.stream(PATH, HEADERS, body) for _ in range(streams)))
    used_us = (time.process_time_ns() - start) / 1000
    assert not any(exchange.error for exchange in exchanges)
    await pool.close()
    return used_us


async def with_httpx(url: str, body: bytes, streams: int) -> float:
    """Return the processor time of all streams, us; the client is made before."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=60) as client:
        start = time.process_time_ns()
        await asyncio.gather(*(one_httpx(client, url + PATH, body) for _ in range(streams)))
        return (time.process_time_ns() - start) / 1000


async def one_httpx(client: httpx.AsyncClient, url: str, body: bytes) -> None:
    times: list[float] = []
    headers = {"content-type": "application/json"}
    async with client.stream("POST", url, content=body, headers=headers) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                event = msgspec.json.decode(line[6:])
                if event["choices"]:
                    times.append(time.perf_counter())
    assert times


def serve(pipe: Connection) -> None:
    uvloop.run(serve_forever(pipe))


async def serve_forever(pipe: Connection) -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=1 << 20, backlog=1000)
    pipe.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await server.serve_forever()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            break
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        body = msgspec.json.decode(await reader.readexactly(length))
        writer.write(HEAD)
        for _ in range(body["max_tokens"]):
            await asyncio.sleep(PAUSE_S)
            writer.write(TOKEN)
        writer.write(END)
    writer.close()


def frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\nx-kvmesh-worker: w0\r\n\r\n"
)
TOKEN = frame(
    b'data: {"id":"chatcmpl-8f0e4a9d","object":"chat.completion.chunk","created":1760000000,'
    b'"model":"mock","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,'
    b'"finish_reason":null}]}\n\n'
)
END = frame(b'data: {"choices":[],"usage":{"prompt_tokens":9}}\n\ndata: [DONE]\n\n') + b"0\r\n\r\n"


if __name__ == "__main__":
    main()
