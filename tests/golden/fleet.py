"""A whole router over engines that do as requests say, in virtual time."""

import asyncio
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from kvmesh._native import Booking, BookingOutbox
from kvmesh.actors.kernel import Message
from kvmesh.actors.messages import RouterHeartbeat, WorkerHeartbeat, WorkerSeen
from kvmesh.app.mesh.router_mesh import MeshPart
from kvmesh.app.router.command import RouterServer
from kvmesh.app.views.figure import Source
from kvmesh.core.blocks.events import ROOT, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.insight.predictions import Distrust
from kvmesh.core.members.worker_info import LoadReport, Trust, WorkerInfo
from kvmesh.core.prompts.byte_tokenizer import ByteTokenizer

ROUTER_PORT: Final = 8000
ENGINE_PORT: Final = 9000
FOREVER_S: Final = 1e9
MOST_TOKENS: Final = 32
HOW: Final = re.compile(rb"\r\nx-golden: ([^\r]*)\r\n")
_MOVED: Final = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [1, 2],
    "remote_engine_id": "e",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
}
"""What vLLM's NIXL connector answers a prefill with."""

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Kept(msgspec.Struct, frozen=True):
    """Blocks of a prompt that a worker holds: its first `blocks`, by KV events."""

    text: str
    blocks: int
    medium: int = 0


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker of the fleet as its sidecar describes it, and its engine's pace."""

    models: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    trust: Trust = Trust.EXACT
    total_blocks: int = 2000
    load: LoadReport | None = None
    kept: tuple[Kept, ...] = ()
    first_s: float = 0.04
    token_s: float = 0.01
    engine: str = ""
    bootstrap_port: int = 0


def name_of(number: int) -> WorkerId:
    return WorkerId(f"w{number}")


class StillMesh:
    """The router's part in a mesh whose workers never change; what it would publish is kept."""

    draining = False
    post: Callable[[Message], None] | None = None
    released: Callable[[Booking], None] | None = None

    def __init__(self, server: "GoldenRouter") -> None:
        self._server = server
        self.outbox: BookingOutbox | None = BookingOutbox(server.scheduler.sequences, 1)
        self.doubts: list[tuple[str, int, int]] = []

    def why_not(self) -> str:
        return ""

    def warnings(self) -> tuple[str, ...]:
        return ()

    def describe(self) -> dict[str, object]:
        return {}

    def figures(self) -> Iterable[Source]:
        return ()

    def replicas(self) -> tuple[RouterHeartbeat, ...]:
        return ()

    def digests(self) -> tuple[int, int]:
        return 0, 0

    def served(self, worker: WorkerId, answer: object) -> None:
        """Nobody follows events here."""

    def drain(self, worker: WorkerId, *, draining: bool) -> None:
        """Tell nobody."""

    def emptied(self, worker: WorkerId) -> None:
        """Nobody follows events here."""

    def distrust(self, worker: WorkerId, distrust: Distrust) -> None:
        self.doubts.append((worker, distrust.misses, distrust.answers))

    def share_streams(self, hear: object) -> None:
        """There are no siblings."""

    async def start(self, advertise_url: str) -> None:
        del advertise_url
        for number, worker in enumerate(self._server.fleet):
            self._join(number, worker)

    async def failed(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        pass

    def _join(self, number: int, worker: Worker) -> None:
        server, name = self._server, name_of(number)
        now = asyncio.get_running_loop().time()
        workers = server.scheduler.workers
        workers.membership.observe(name, 1, now + FOREVER_S, ready=True)
        beat = WorkerHeartbeat(
            worker=name,
            bucket="default",
            epoch=1,
            last_seq=0,
            url=f"http://127.0.0.1:{ENGINE_PORT + number}",
            models=(*worker.models, *worker.adapters),
            adapters=worker.adapters,
            block_size=16,
            labels=worker.labels,
            taints=worker.taints,
            bootstrap_port=worker.bootstrap_port,
            engine=worker.engine or msgspec.UNSET,
        )
        for _ in server.router.receive(WorkerSeen(beat), now):
            pass
        info = WorkerInfo(
            models=(*worker.models, *worker.adapters),
            total_blocks=worker.total_blocks,
            trust=worker.trust,
            labels=frozenset(worker.labels),
            taints=frozenset(worker.taints),
        )
        workers.describe(name, info)
        if worker.load is not None:
            workers.report(name, worker.load)
        for kept in worker.kept:
            hashes = BlockHashes(kept.text, 16).upto(kept.blocks)
            server.index.store(name, ROOT, pack_hashes(hashes), kept.medium)


class GoldenRouter(RouterServer):
    """A router whose mesh stands still."""

    def __init__(self, settings: Any, fleet: tuple[Worker, ...]) -> None:
        self.fleet = fleet
        super().__init__(settings)

    def _mesh(self) -> MeshPart:
        return StillMesh(self)


class Engine(asyncio.Protocol):
    """An engine's end of one connection. The request's header `x-golden` says how it answers:
    `w1=reset,w2=503`, else well.
    """

    def __init__(
        self, number: int, worker: Worker, seen: list[dict[str, Any]], held: set[int]
    ) -> None:
        self._number = number
        self._worker = worker
        self._seen = seen
        self._held = held
        self._data = b""
        self._wire: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, rest = self._data.partition(b"\r\n\r\n")
        length = _LENGTH.search(head + b"\r\n")
        size = int(length.group(1)) if length else 0
        if end and len(rest) >= size:
            self._data = rest[size:]
            self._serve(head, rest[:size])

    def _serve(self, head: bytes, body: bytes) -> None:
        line = head.split(b"\r\n", 1)[0]
        if line.startswith(b"GET"):
            self._wire.write(_answer(200, b"{}"))
            return
        text = (head + b"\r\n\r\n" + body).decode("latin-1")
        self._seen.append({"engine": f"w{self._number}", "request": text})
        asked = HOW.search(head + b"\r\n")
        ways = dict(one.split(b"=") for one in asked.group(1).split(b",")) if asked else {}
        way = ways.get(b"w%d" % self._number, ways.get(b"all", b"well")).decode()
        if way == "hang":
            return
        parsed = json.loads(body) if body else {}
        loop = asyncio.get_running_loop()
        if way.isdigit():
            answer = _answer(int(way), b'{"error":{"message":"as asked","type":"golden"}}')
            loop.call_later(self._worker.first_s, self._wire.write, answer)
        elif way == "reset":
            loop.call_later(self._worker.first_s, self._wire.abort)
        elif parsed.get("stream"):
            self._stream(parsed, cut=way == "cut")
        else:
            tokens = min(parsed.get("max_tokens") or 8, MOST_TOKENS)
            after_s = self._worker.first_s + tokens * self._worker.token_s
            answer = _answer(200, _whole(parsed, self._usage(parsed, tokens)))
            loop.call_later(after_s, self._wire.write, answer)

    def _usage(self, parsed: dict[str, Any], tokens: int) -> dict[str, Any]:
        ids = _ids_of(parsed)
        hashes = BlockHashes(ids, 16).upto(1 << 20)
        cached = next((n for n, one in enumerate(hashes) if one not in self._held), len(hashes))
        self._held.update(hashes)
        return {
            "prompt_tokens": len(ids),
            "completion_tokens": tokens,
            "total_tokens": len(ids) + tokens,
            "prompt_tokens_details": {"cached_tokens": 16 * cached},
        }

    def _stream(self, parsed: dict[str, Any], *, cut: bool) -> None:
        loop, at_s = asyncio.get_running_loop(), self._worker.first_s
        head = (
            b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; "
            b"charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        tokens = min(parsed.get("max_tokens") or 8, MOST_TOKENS)
        pieces = _events(parsed, self._usage(parsed, tokens))
        if cut:
            pieces = pieces[: len(pieces) // 2]
        for number, piece in enumerate(pieces):
            data = b"%x\r\n%b\r\n" % (len(piece), piece)
            if number == 0:
                data = head + data
            if number == len(pieces) - 1 and not cut:
                data += b"0\r\n\r\n"
            loop.call_later(at_s, self._wire.write, data)
            at_s += self._worker.token_s
        if cut:
            loop.call_later(at_s, self._wire.abort)


def _answer(status: int, body: bytes) -> bytes:
    head = b"HTTP/1.1 %d X\r\nserver: uvicorn\r\ncontent-length: %d\r\n" % (status, len(body))
    return head + b"content-type: application/json\r\n\r\n" + body


def _ids_of(parsed: dict[str, Any]) -> str:
    """Return the prompt's token ids, as the router's own tokenizer makes them where it can."""
    turns, prompt = parsed.get("messages"), parsed.get("prompt")
    if isinstance(turns, list) and all(isinstance(one.get("content"), str) for one in turns):
        return ByteTokenizer().pack_chat(ChatInput(turns))
    return prompt if isinstance(prompt, str) else json.dumps(turns or prompt)


def _whole(parsed: dict[str, Any], usage: dict[str, Any]) -> bytes:
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "logprobs": None}
    text = " ".join(f"t{number}" for number in range(usage["completion_tokens"]))
    if "messages" in parsed:
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    kind = "chat.completion" if "messages" in parsed else "text_completion"
    return json.dumps(
        {
            "id": "cmpl-1",
            "object": kind,
            "created": 1,
            "model": parsed.get("model", "m"),
            "choices": [choice],
            "usage": usage,
            "kv_transfer_params": _MOVED if parsed.get("kv_transfer_params") else None,
        }
    ).encode()


def _events(parsed: dict[str, Any], usage: dict[str, Any]) -> list[bytes]:
    chat = "messages" in parsed
    frame = {
        "id": "cmpl-1",
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": 1,
        "model": parsed.get("model", "m"),
    }

    def event(choices: list[dict[str, Any]], **more: Any) -> bytes:
        return b"data: " + json.dumps({**frame, "choices": choices, **more}).encode() + b"\n\n"

    def piece(text: str, finish: str | None = None) -> dict[str, Any]:
        shown = {"delta": {"content": text}} if chat else {"text": text}
        return {"index": 0, **shown, "finish_reason": finish}

    made = [event([{"index": 0, "delta": {"role": "assistant", "content": ""}}])] if chat else []
    made += [event([piece(f"t{number} ")]) for number in range(usage["completion_tokens"] - 1)]
    made.append(event([piece("end", "length")]))
    if (parsed.get("stream_options") or {}).get("include_usage"):
        made.append(event([], usage=usage))
    return [*made, b"data: [DONE]\n\n"]
