"""An engine that answers every path with what it was asked, and keeps the ids that it is given."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

from kvmesh.app.serve.response_holders import MADE_AT
from kvmesh.core.admission.paths import ROWS

PROMPTS = {row.path for row in ROWS if row.owner == "prefix"}
ANSWER = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "text": "x"}],
    "content": [{"type": "text", "text": "x"}],
    "output": [{"type": "message", "content": []}],
    "data": [{"index": 0, "embedding": [0.5]}],
    "status": "completed",
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "input_tokens": 1, "output_tokens": 1},
}
"""What all APIs with a prompt answer, in one."""


class EchoEngine:
    """`seen` are the requests but for those by which an engine is watched; `kept` the paths that it
    alone answers, others of the same form are 404. One that `makes` files, answers and the like
    keeps and lists them.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[tuple[str, str]] = []
        self.kept: set[str] = set()
        self.makes = False
        self.url = ""
        self.answers: dict[str, bytes] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, target, _ = head.partition("\r\n")[0].split(" ")
                length = head.lower().partition("content-length: ")[2].partition("\r\n")[0]
                await reader.readexactly(int(length or 0))
                status, body = self.answer(method, target)
                size = f"content-length: {len(body)}\r\ncontent-type: application/json"
                writer.write(f"HTTP/1.1 {status} X\r\n{size}\r\n\r\n".encode() + body)
                await writer.drain()
        writer.close()

    def answer(self, method: str, target: str) -> tuple[int, bytes]:
        path = target.partition("?")[0]
        self.seen.append((method, path))
        if path in self.answers:
            return 200, self.answers[path]
        if self.makes and path in MADE_AT:
            return 200, json.dumps(self.make_or_list(method, path)).encode()
        if path == "/v1/models":
            return 200, json.dumps({"object": "list", "data": [{"id": "tiny"}]}).encode()
        if path.count("/") > 2 and "_id" in path and path.rpartition("/")[0] != "/v1/models":
            known = any(path.startswith(one) for one in self.kept)
            if not known:
                return 404, b"{}"
        told = {"by": self.name, "path": path, "same": 1}
        return 200, json.dumps(told | (ANSWER if path in PROMPTS else {})).encode()

    def make_or_list(self, method: str, path: str) -> dict[str, object]:
        if method == "POST":
            name = f"{self.name}_id{len(self.kept)}"
            self.kept.add(f"{path}/{name}")
            kind = path.removeprefix("/v1/").replace("batches", "batch").rstrip("s")
            return {"id": name, "object": kind, "by": self.name, "output": [], "status": "queued"}
        ids = sorted(one.rpartition("/")[2] for one in self.kept if one.startswith(path))
        return {"object": "list", "first_id": "x", "data": [{"id": one} for one in ids]}


@contextlib.asynccontextmanager
async def echo_engines(count: int) -> AsyncIterator[list[EchoEngine]]:
    """Serve so many of them, until the block ends."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [EchoEngine(f"e{number}") for number in range(count)]
        for one in engines:
            server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
            stack.callback(server.close)
            one.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield engines
