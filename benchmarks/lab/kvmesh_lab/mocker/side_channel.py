"""How two pretend vLLM workers find each other beside their requests: Mooncake and P2pNccl.

With Mooncake the prefill half listens: it says who it is, and hands each transfer out once. With
P2pNccl the decode half listens, and is sent what a prefill has computed.
Source: vllm MooncakeConnector, `MooncakeBootstrapServer` (0.32); P2pNcclConnector
`parse_request_id` (0.10).
"""

import asyncio
import re
from typing import Final, Literal
from urllib.parse import quote, unquote, urlsplit

import msgspec
from xxhash import xxh3_64_hexdigest

from kvmesh.errors import RequestError
from kvmesh.transport.http.fetch import HTTP_OK, fetch_ok
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh_lab.mocker.vllm_requests import GenerationRequest

PATIENCE_S: Final = 10.0
_ADDRESSES: Final = re.compile(r"___prefill_addr_(\S+:\d+)___decode_addr_(\S+:\d+)_[0-9a-f]{32}")

Half = Literal["prefill", "decode"]


class SideChannel:
    """One engine's half of `connector`. `engine_id` is what it calls itself."""

    def __init__(
        self, connector: Literal["mooncake", "p2p-nccl"], half: Half, address: tuple[str, int],
        engine_id: str,
    ) -> None:  # fmt: skip
        self._connector = connector
        self._half = half
        self._host, self._port = address
        self._engine_id = engine_id
        self._held: dict[str, str] = {}
        self._server = HttpServer(self._on_call)
        self._pool = UpstreamPool()

    async def open(self) -> None:
        """Listen, if its half does. Raises `TransportError`."""
        if self._half == "prefill" or self._connector == "p2p-nccl":
            await self._server.start(self._host, self._port)

    async def close(self) -> None:
        """Meet nobody any more."""
        await self._server.drain(0.0)
        await self._pool.close()

    async def meet(self, request: GenerationRequest, prompt: bytes, request_id: str) -> None:
        """Check a request on its way in, and its KV cache's way.

        Raises `RequestError` for anything that would not work between real engines.
        """
        digest = xxh3_64_hexdigest(prompt)
        if self._half == "prefill" and (request.max_tokens != 1 or request.stream):
            raise _refused("a prefill has one token, no stream")
        if self._connector == "p2p-nccl":
            await self._meet_by_name(request_id, digest)
        elif self._half == "prefill":
            self._offer(request, digest)
        else:
            await self._take(request, digest)

    def _offer(self, request: GenerationRequest, digest: str) -> None:
        params = request.transfer or {}
        name = params.get("transfer_id")
        if params.get("do_remote_decode") is not True or params.get("do_remote_prefill"):
            raise _refused("a prefill worker needs do_remote_decode")
        if not isinstance(name, str) or not name:
            raise _refused("Missing transfer_id in kv_transfer_params from router!")
        if not request.rules.ignore_eos or request.rules.stop:
            raise _refused("what does not end by its length is not transferred")
        self._held[name] = digest

    async def _take(self, request: GenerationRequest, digest: str) -> None:
        params = request.transfer
        if params is None:
            return
        if params.get("do_remote_prefill") is not True or params.get("do_remote_decode"):
            raise _refused("a decode worker needs do_remote_prefill")
        found = [
            params.get(name)
            for name in ("remote_engine_id", "remote_bootstrap_addr", "transfer_id")
        ]
        engine, address, name = (one if isinstance(one, str) else "" for one in found)
        if not engine or not address or not name:
            raise _refused(f"Got invalid KVTransferParams: {params}")
        path = f"/take/{quote(engine, safe='')}/{quote(name, safe='')}/{digest}"
        if not await self._call(urlsplit(address).netloc, path):
            raise _refused(f"{address} has no transfer {name} of engine {engine} for this prompt")

    async def _meet_by_name(self, request_id: str, digest: str) -> None:
        addresses = _ADDRESSES.search(request_id)
        if addresses is None:
            raise _refused(f"Request id {request_id} does not contain hostname and port")
        own = addresses[1] if self._half == "prefill" else addresses[2]
        if own != f"{self._host}:{self._port}":
            raise _refused(f"{own} is not this engine's {self._host}:{self._port}")
        if self._half == "prefill":
            path = f"/put/{quote(request_id, safe='')}/{digest}"
            if not await self._call(addresses[2], path):
                raise _refused(f"nobody takes blocks at {addresses[2]}")
        elif self._held.pop(request_id, "") != digest:
            raise _refused(f"no blocks of this prompt came for {request_id}")

    async def _call(self, authority: str, path: str) -> bool:
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await fetch_ok(self._pool, f"http://{authority}", path) is not None
        except TimeoutError:
            return False

    def _on_call(self, exchange: Exchange) -> None:
        """Say who this is, hand a transfer out, or take blocks in."""
        what, *words = exchange.request.path.removeprefix("/").split("/")
        done = False
        if what == "query":
            page = {"0": {"engine_id": self._engine_id, "worker_addr": {"0": {"0": "tcp://h:1"}}}}
            exchange.respond(HTTP_OK, msgspec.json.encode(page))
            return
        if what == "take":
            engine, name, digest = (unquote(one) for one in words)
            done = engine == self._engine_id and self._held.get(name) == digest
            if done:
                del self._held[name]
        elif what == "put":
            name, digest = (unquote(one) for one in words)
            self._held[name] = digest
            done = True
        exchange.respond(HTTP_OK if done else 404, b"{}")


def _refused(text: str) -> RequestError:
    return RequestError(text, param="kv_transfer_params", status=500)
