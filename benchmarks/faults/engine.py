"""A tiny engine in the benchmark's own process: it says when each request came, and fails those
that hold a word, or just the next ones.
"""

import asyncio
import contextlib
import socket
import struct
from collections import deque
from typing import Final, Literal

ANSWER_S: Final = 0.2
POISON: Final = b"POISON"
"""The connection on which a prompt with this word came is closed, unanswered."""

OneFault = Literal["500", "reset", "cut", "hang"]

CHAT: Final = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"hello there"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12}}'
)
MODELS: Final = b'{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"x"}]}'
ERROR: Final = b'{"error":{"message":"CUDA error","type":"InternalServerError","code":500}}'
PAGES: Final = {b"/v1/models": MODELS, b"/health": b"{}", b"/metrics": b"# none\n"}
HTTP_2: Final = b"PRI * HTTP/2.0"
"""Some routers first try whether an engine speaks gRPC."""
RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)


class TinyEngine:
    """An engine that answers each chat after `ANSWER_S`; `faults` befall the next chats, in order.

    Times are the running loop's.
    """

    def __init__(self) -> None:
        self.faults: deque[OneFault] = deque()
        self.came_s: list[float] = []
        self.failed_s: list[float] = []
        self.poisoned = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> str:
        """Listen, return the URL."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        """Close all connections."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    def chats(self) -> int:
        """Return how many chats came."""
        return len(self.came_s)

    def has_failed(self, times: int) -> bool:
        """Return whether so many faults have happened."""
        return len(self.failed_s) >= times

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._answer(reader, writer):
                await writer.drain()
        self._writers.discard(writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Read and answer one request; return whether the connection stays."""
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(HTTP_2):
            return False
        method, path, _ = head.split(b" ", 2)
        lines = head.lower().split(b"\r\n")
        lengths = [line[15:] for line in lines if line.startswith(b"content-length:")]
        body = await reader.readexactly(int(lengths[0]) if lengths else 0)
        if method == b"GET":
            page = PAGES.get(path.partition(b"?")[0])
            _write(writer, 404 if page is None else 200, page or b"{}")
            return True
        if not path.endswith(b"/chat/completions"):
            _write(writer, 404, b"{}")
            return True
        if POISON in body:
            self.poisoned += 1
            return False
        return await self._chat(reader, writer)

    async def _chat(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        loop = asyncio.get_running_loop()
        self.came_s.append(loop.time())
        fault = self.faults.popleft() if self.faults else None
        if fault is None:
            await asyncio.sleep(ANSWER_S)
            _write(writer, 200, CHAT)
            return True
        if fault == "hang":
            await reader.read()
        elif fault == "500":
            _write(writer, 500, ERROR)
        elif fault == "cut":
            _write(writer, 200, CHAT, sent=len(CHAT) // 2)
        else:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        self.failed_s.append(loop.time())
        return fault == "500"


def _write(writer: asyncio.StreamWriter, status: int, body: bytes, sent: int = -1) -> None:
    head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    writer.write(head % (status, len(body)) + (body if sent < 0 else body[:sent]))
