"""From one account for all to an account a bucket, while processes run."""

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.app.ops.nats_accounts import write_accounts
from kvmesh.app.ops.nats_members import AccountsOptions
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.app.ops.nats_streams import StreamsOptions, make_streams
from kvmesh.settings.roles import NatsSettings
from tests.integration.support import waiting
from tests.integration.support.live_router import mockers
from tests.integration.support.locked_mesh import reload
from tests.integration.support.mesh_process import Process
from tests.integration.support.single_account import NAME, seed, write_single_account

pytestmark = pytest.mark.integration

MANY = 100
STREAM_BYTES = 32 * 1024**2
PROMPT = "A long shared beginning, again and again. " * 40


class Mesh:
    """A server whose configuration can be replaced, an engine, and the processes around it."""

    def __init__(self, folder: Path, stack: contextlib.AsyncExitStack, config: str) -> None:
        self.folder = folder
        self.out = folder / "accounts"
        self.server = NatsServer(folder / "store", log_path=folder / "nats.log", config=config)
        self.stack = stack
        self.client = httpx.AsyncClient(timeout=60)

    async def reload(self, config: str) -> None:
        """Reload twice, as for accounts that are new, and wait until it is done."""
        (self.folder / "store/nats.conf").write_text(config)
        for _ in range(2):
            await reload(self.server, self.folder / "nats.log")

    async def process(self, label: str, *words: str) -> Process:
        login = ("--nats-url", self.server.url, "--nats-creds", str(seed(self.out, label)))
        folder = self.folder / label
        folder.mkdir()
        process = Process(self.stack, folder, *words, *login)
        await process.start()
        return process

    async def until(self, url: str, check: Callable[[Any], object]) -> Any:
        async def look() -> Any:
            answer = await self.client.get(url)
            return answer.json() if answer.is_success and check(answer.json()) else None

        return await waiting.until(look)

    async def chat(self, url: str, prompt: str = PROMPT) -> httpx.Response:
        messages = [{"role": "user", "content": prompt}]
        body = {"model": "mock", "max_tokens": 2, "messages": messages}
        return await self.client.post(f"{url}/v1/chat/completions", json=body)


async def test_one_account_becomes_many_while_processes_run(
    tmp_path: Path, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    options = AccountsOptions(
        out=tmp_path / "accounts", worker=("code/w7",), router=("code/r1", "code/r2")
    )
    mesh = Mesh(tmp_path, stack, write_single_account(options))
    await mesh.server.start()
    stack.push_async_callback(mesh.server.stop)
    stack.push_async_callback(mesh.client.aclose)
    nats = NatsSettings(nats_url=mesh.server.url, stream_max_bytes=STREAM_BYTES)
    old_admin = replace(nats, nats_creds=seed(mesh.out, "admin"))
    await make_streams(StreamsOptions(bucket=("code",), nats=old_admin))
    (engine,) = await stack.enter_async_context(mockers())
    worker = ("worker", "--engine-url", engine.url, "--bucket", "code", "--worker-id", "w7")
    await mesh.process("worker.code.w7", *worker)
    routers = [
        await mesh.process(
            f"router.code.{name}",
            *("router", "--bucket", "code", "--router-id", name, "--http-port", "0"),
            *("--stream-max-bytes", str(STREAM_BYTES)),
        )
        for name in ("r1", "r2")
    ]
    meta = await mesh.process("meta-router", "meta-router", "--http-port", "0")
    await eventually(lambda: meta.url() and all(one.url() for one in routers), what="all serve")
    await mesh.until(f"{meta.url()}/ready", lambda _: True)
    assert (await mesh.chat(meta.url())).status_code == 200
    seen = [(await mesh.until(f"{one.url()}/v1/status", holds_blocks))["mesh"] for one in routers]
    seeds = {path.name: path.read_bytes() for path in (mesh.out / "seeds").iterdir()}

    write_accounts(options)
    await mesh.reload((mesh.out / "accounts.conf").read_text())
    await make_streams(StreamsOptions(bucket=("code",), admin_keys=mesh.out / "seeds", nats=nats))

    for one in routers:
        await mesh.until(f"{one.url()}/v1/status", lambda it: is_sure(it["mesh"], seen[0]))
    again = await mesh.chat(meta.url())
    other = await mesh.chat(meta.url(), "Another beginning. " * 90)
    assert (again.status_code, other.status_code) == (200, 200)
    assert int(again.headers["x-kvmesh-overlap-blocks"]) > MANY
    after = await agreement(mesh, routers)
    assert len({one["digest"] for one in after}) == 1
    assert min(one["blocks"]["w7"] for one in after) > max(one["blocks"]["w7"] for one in seen)
    assert {name: (mesh.out / "seeds" / name).read_bytes() for name in seeds} == seeds
    # What docs/operate/runbook.md tells an operator to delete, while all runs.
    shutil.rmtree(tmp_path / "store/jetstream" / NAME)
    assert (await mesh.chat(meta.url())).status_code == 200


async def agreement(mesh: Mesh, routers: list[Process]) -> list[dict[str, Any]]:
    """Return what routers say of the mesh when all have read equally far in the new stream."""
    while True:
        after = [
            (await mesh.until(f"{one.url()}/v1/status", lambda it: reads_on(it["mesh"])))["mesh"]
            for one in routers
        ]
        if len({one["applied_sequence"] for one in after}) == 1:
            return after


def holds_blocks(status: dict[str, Any]) -> bool:
    """Return whether a router knows what the worker caches."""
    blocks: int = status["mesh"]["blocks"].get("w7", 0)
    return blocks > MANY


def is_sure(now: dict[str, Any], before: dict[str, Any]) -> bool:
    """Return whether a router reads the new stream and no more doubts what it knew before."""
    replica = now["indexer"]["replica"]
    return now.get("created", "") not in ("", before["created"]) and not replica["doubted"]


def reads_on(now: dict[str, Any]) -> bool:
    """Return whether events of the new stream have come."""
    sequence: int = now["applied_sequence"]
    return sequence > 0
