"""An engine that attacks whoever looks at its answers: their browsers, and where things are."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from kvmesh.settings.http import UpstreamSettings
from tests.integration.support.live_router import client_of, meta_router, router

pytestmark = pytest.mark.integration

WHOLE = json.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "model": "mock",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "m"}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
).encode()
EVENT = b'data: {"model":"mock","choices":[{"index":0,"delta":{"content":"m"}}]}\n\n'
POISONED = (
    b"set-cookie: kvmesh_session=evil; Path=/\r\nlocation: http://169.254.169.254/\r\n"
    b"access-control-allow-origin: *\r\naccess-control-allow-credentials: true\r\n"
    b'clear-site-data: "*"\r\nstrict-transport-security: max-age=9\r\nalt-svc: h3="evil:1"\r\n'
    b'refresh: 0; url=http://evil/\r\nwww-authenticate: Basic realm="kvmesh"\r\n'
    b"x-kvmesh-worker: forged\r\nx-kvmesh-anything: forged\r\nservice-worker-allowed: /\r\n"
)
FORBIDDEN = {
    *("set-cookie", "location", "access-control-allow-origin", "clear-site-data", "alt-svc"),
    *("access-control-allow-credentials", "strict-transport-security", "refresh"),
    *("www-authenticate", "x-kvmesh-anything", "service-worker-allowed"),
}
SCRIPT = b"<script>alert(document.cookie)</script>"
ADDRESS = re.compile(r"127\.0\.0\.1|localhost|\.invalid|https?:|errno|/work/|/tmp/", re.IGNORECASE)
BODY = {"model": "mock", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}


class EvilEngine:
    """Tells its models; to all else it answers the bytes of `said`, or what `act` does."""

    def __init__(self) -> None:
        self.said = b""
        self.act: Callable[[asyncio.StreamWriter], None] | None = None
        self.heads: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length or 0))
                if head.startswith((b"GET /v1/models ", b"GET /health ")):
                    body = b'{"object":"list","data":[{"id":"mock","object":"model"}]}'
                    writer.write(answer(body))
                    continue
                self.heads.append(head)
                writer.write(self.said)
                if self.act is not None:
                    self.act(writer)
        writer.close()


def answer(body: bytes, more: bytes = b"", *, status: int = 200, kind: bytes = b"") -> bytes:
    kind = kind or b"application/json"
    head = b"HTTP/1.1 %d x\r\ncontent-type: %b\r\ncontent-length: %d\r\n" % (
        status,
        kind,
        len(body),
    )
    return head + more + b"\r\n" + body


@pytest.fixture
async def engine() -> AsyncIterator[EvilEngine]:
    evil = EvilEngine()
    async with await asyncio.start_server(evil.serve, "127.0.0.1", 0) as server:
        evil.port = server.sockets[0].getsockname()[1]
        yield evil


@pytest.fixture
async def client(engine: EvilEngine) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a router behind a meta-router: what the engine says passes both."""
    async with (
        router([f"http://127.0.0.1:{engine.port}"], bucket="b", parity_sample=0) as inner,
        client_of(meta_router([f"b={inner}"])) as http,
    ):
        yield http


@pytest.mark.parametrize("stream", [False, True])
async def test_no_header_that_acts_for_the_origin_passes(
    client: httpx.AsyncClient, engine: EvilEngine, stream: bool
) -> None:
    events = EVENT + b"data: [DONE]\n\n"
    engine.said = answer(
        events if stream else WHOLE, POISONED, kind=b"text/event-stream" if stream else b""
    )
    # Again and again: a head that is known is passed on without being parsed.
    for _ in range(5):
        got = await client.post("/v1/chat/completions", json=BODY | {"stream": stream})

        assert got.status_code == 200
        assert not FORBIDDEN & set(got.headers)
        assert got.headers["x-kvmesh-worker"] == "w0"
        assert got.headers.get_list("x-content-type-options") == ["nosniff"]
    assert sum(head.startswith(b"POST") for head in engine.heads) == 5


async def test_a_page_on_an_unknown_path_is_text(
    client: httpx.AsyncClient, engine: EvilEngine
) -> None:
    for kind in (b"text/html", b"image/svg+xml", b"application/json, text/html", b"text/xml"):
        for status in (200, 404):
            engine.said = answer(SCRIPT, POISONED, status=status, kind=kind)
            got = await client.get("/v1/anything.html")

            assert got.content == SCRIPT
            assert got.headers["content-type"] == "text/plain; charset=utf-8"
            assert got.headers["x-content-type-options"] == "nosniff"
            assert not FORBIDDEN & set(got.headers)


async def test_a_redirect_is_neither_followed_nor_passed_on(
    client: httpx.AsyncClient, engine: EvilEngine
) -> None:
    asked: list[bytes] = []

    async def metadata(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(1))
        writer.close()

    async with await asyncio.start_server(metadata, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        place = b"http://127.0.0.1:%d/" % port
        for status in (301, 302, 303, 307, 308):
            engine.said = answer(place, b"location: " + place + b"\r\n", status=status)
            got = await client.get("/v1/elsewhere")

            assert (got.status_code, got.json()["error"]["code"]) == (502, "upstream_redirect")
            assert got.headers["x-kvmesh-worker"] == "w0"
            assert got.headers["x-should-retry"] == "false"
            assert "location" not in got.headers
            assert f"w0 answered {status}" in got.text
            assert not ADDRESS.search(got.text)
        engine.said = b"HTTP/1.1 304 x\r\n" + b"etag: 1\r\n\r\n"
        assert (await client.get("/v1/elsewhere")).status_code == 304

    assert asked == []


async def test_a_cut_stream_tells_the_worker_and_no_address(
    client: httpx.AsyncClient, engine: EvilEngine
) -> None:
    engine.said = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
    )
    engine.act = lambda writer: writer.close()
    seen = b""
    with contextlib.suppress(httpx.RemoteProtocolError):
        async with client.stream(
            "POST", "/v1/chat/completions", json=BODY | {"stream": True}
        ) as got:
            async for piece in got.aiter_raw():
                seen += piece

    assert b'"error"' in seen
    assert b"w0" in seen
    assert not ADDRESS.search(seen.decode())


async def test_an_engine_that_is_gone_is_told_by_its_name() -> None:
    evil = EvilEngine()
    server = await asyncio.start_server(evil.serve, "127.0.0.1", 0)
    evil.port = server.sockets[0].getsockname()[1]
    evil.act = lambda writer: writer.transport.abort()
    url = f"http://127.0.0.1:{evil.port}"
    async with (
        client_of(router([url], parity_sample=0, upstream=UpstreamSettings(max_retries=0))) as http,
    ):
        answers = [await http.post("/v1/chat/completions", json=BODY)]
        server.close()
        await server.wait_closed()
        answers.append(await http.post("/v1/completions", json={"model": "mock", "prompt": "x"}))

    for got in answers:
        assert got.status_code >= 500
        assert not ADDRESS.search(got.text), got.text
