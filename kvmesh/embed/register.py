"""`kvmesh.register_llm`: the sidecar of one engine in this process's event loop."""

import asyncio
import contextlib
from pathlib import Path
from typing import Final, Literal

import msgspec

from kvmesh.app.process.running import Stop, first_of
from kvmesh.app.worker.command import Sidecar
from kvmesh.embed.login import NatsLogin
from kvmesh.embed.opening import ClosedByBlock, Opening
from kvmesh.errors import ConfigError, KvMeshError, TransportError
from kvmesh.observe import get_logger, log_to_stdlib
from kvmesh.settings.roles import WorkerSettings
from kvmesh.tasks import end_tasks, supervise

END_S: Final = 10.0
"""So long the sidecar may take to say that it leaves."""


class RegisterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine is put on the mesh, with the meaning and defaults of `kvmesh worker`'s flags.

    `model`: what the engine must serve; "": whatever it does. `wait_s`: how long to wait for the
    engine and for NATS; `math.inf`: for ever.
    """

    model: str = ""
    worker_id: str = ""
    kv_cache_block_size: int | None = None
    kv_events: bool = True
    kv_events_endpoint: str = ""
    kv_replay_endpoint: str = ""
    role: Literal["auto", "both", "prefill", "decode"] = "auto"
    labels: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    engine_key_file: Path | None = None
    hash_secret_file: Path | None = None
    wait_s: float = 300.0
    login: NatsLogin = NatsLogin()


_DEFAULTS = RegisterOptions()


class RegisteredLlm(ClosedByBlock):
    """An engine on the mesh until `close`: its KV events, load and health are published.

    Made by `kvmesh.register_llm`. `worker_ids`: its name, or one of each data-parallel rank;
    `models`: what it serves.
    """

    def __init__(self, sidecar: Sidecar) -> None:
        self.worker_ids: tuple[str, ...] = ()
        self.models: tuple[str, ...] = ()
        self._sidecar = sidecar
        self._stop = Stop()
        self._running: asyncio.Task[None] | None = None
        self._failure: KvMeshError | None = None

    async def open(self, engine_url: str, wait_s: float) -> None:
        """Put the engine on the mesh. Raises what `register_llm` does."""
        sidecar = self._sidecar
        self._running = running = supervise("sidecar", self._serve, "end")
        timeout = None if wait_s == float("inf") else wait_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await first_of(asyncio.shield(running), self._joined())
        self._raise_failure()
        if not sidecar.running.is_set():
            reason = sidecar.waiting() or "the engine does not answer /v1/models"
            await self.close()
            raise TransportError(f"registering {engine_url}: {reason} after {wait_s:g} s")
        self.worker_ids, self.models = sidecar.workers(), sidecar.models

    async def close(self) -> None:
        """Take the engine off the mesh: routers send it nothing new. Safe to call twice."""
        self._stop.request()
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=END_S)
            await end_tasks(self._running)

    async def failed(self) -> None:
        """Wait until the sidecar ends, and raise what it raised; nothing after `close`."""
        if self._running is not None:
            await asyncio.shield(self._running)
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _joined(self) -> None:
        await self._sidecar.running.wait()

    async def _serve(self) -> None:
        try:
            await self._sidecar.serve(self._stop)
        except KvMeshError as error:
            self._failure = error
            if self.worker_ids:
                get_logger().error("sidecar ended", workers=self.worker_ids, error=str(error))


def register_llm(
    engine_url: str,
    nats_url: str = "",
    bucket: str = "default",
    options: RegisterOptions = _DEFAULTS,
) -> Opening[RegisteredLlm]:
    """Do in this process what `kvmesh worker` does for one engine.

    `llm = await kvmesh.register_llm(engine_url, nats_url, bucket)` is ended by `await llm.close()`,
    `async with kvmesh.register_llm(engine_url, nats_url, bucket) as llm:` with its block.
    `engine_url`: where routers shall reach the engine's OpenAI server; `nats_url` as `follow`'s.
    It returns when the engine answered and is on the mesh. Raises `ConfigError` for a bad name or
    URL, for an engine without KV events and one that does not serve `options.model`;
    `TransportError` when NATS refuses, or something does not answer within `options.wait_s`.
    """
    size = options.kv_cache_block_size
    if size is not None and size < 1:
        raise ConfigError(f"kv_cache_block_size is {size}, it must be at least 1")

    async def opened() -> RegisteredLlm:
        log_to_stdlib()
        settings = WorkerSettings(
            engine_url=engine_url,
            engine_key_file=options.engine_key_file,
            bucket=bucket,
            worker_id=options.worker_id,
            kv_events=options.kv_events,
            kv_events_endpoint=options.kv_events_endpoint,
            kv_replay_endpoint=options.kv_replay_endpoint,
            role=options.role,
            kv_cache_block_size=size,
            label=options.labels,
            taint=options.taints,
            hash_secret_file=options.hash_secret_file,
            nats=options.login.settings(nats_url),
        )
        llm = RegisteredLlm(Sidecar(settings, model=options.model))
        try:
            await llm.open(engine_url, options.wait_s)
        except BaseException:
            await llm.close()
            raise
        return llm

    return Opening(opened)
