"""A decode worker's sidecar as llm-d publishes it: prefill where a header says, then decode here.

The rule, from `pkg/sidecar/proxy` of llm-d-router: the header is taken off; with it the body goes
to that worker first, with one token to make, no stream and a transfer asked for; what the answer
says of the transfer is put into the client's body, which goes to the engine beside the sidecar.
Both legs have one request id, of the sidecar's own.
"""

import asyncio
import json
import uuid
from typing import Any, Final

import httpx

PREFILLER: Final = "x-prefiller-host-port"
CANONICAL: Final = "x-llm-d-prefiller-host-port"
ASKED: Final = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class PretendSidecar:
    """Listens beside `engine`, a decode worker's URL. `prefilled` are the workers it asked."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.url = ""
        self.prefilled: list[str] = []
        self.seen: list[dict[str, str]] = []
        self._client = httpx.AsyncClient(timeout=30)
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._client.aclose()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, path, _ = lines[0].split(" ")
                pairs = (line.split(":", 1) for line in lines[1:] if line)
                headers = {name.lower(): value.strip() for name, value in pairs}
                body = await _read_body(reader, headers)
                answer = await self._answer(method, path, headers, body)
                kind = answer.headers.get("content-type", "text/plain")
                head = f"HTTP/1.1 {answer.status_code} OK\r\ncontent-type: {kind}\r\n"
                writer.write(f"{head}content-length: {len(answer.content)}\r\n\r\n".encode())
                writer.write(answer.content)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> httpx.Response:
        if method == "GET":
            return await self._client.get(self.engine + path)
        self.seen.append(dict(headers))
        reported = [headers.pop(name, "") for name in (PREFILLER, CANONICAL)]
        prefiller = next((one for one in reported if one), "")
        request: dict[str, Any] = json.loads(body)
        own = {"x-request-id": str(uuid.uuid4())}
        if prefiller:
            self.prefilled.append(prefiller)
            first = {**request, "stream": False, "max_tokens": 1, "kv_transfer_params": ASKED}
            first.pop("stream_options", None)
            answer = await self._client.post(f"http://{prefiller}{path}", json=first, headers=own)
            if answer.is_error:
                return answer
            request["kv_transfer_params"] = answer.json()["kv_transfer_params"]
        return await self._client.post(self.engine + path, json=request, headers=own)


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "transfer-encoding" not in headers:
        return await reader.readexactly(int(headers.get("content-length", 0)))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body
