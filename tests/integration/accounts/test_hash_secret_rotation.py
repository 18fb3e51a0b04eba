"""The secret of block hashes changed while a bucket serves: docs/operate/runbook.md."""

import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import kvmesh
from kvmesh import NatsLogin, RegisterOptions
from kvmesh.app.ops.nats_members import AccountsOptions
from kvmesh.app.router.command import RouterServer
from kvmesh.core.blocks.events import WorkerId
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.roles import CostSettings, RouterSettings
from kvmesh_lab.mocker.command import Mocker, MockerOptions
from tests.integration.support.live_router import free_port, serving
from tests.integration.support.locked_mesh import LockedMesh, locked_mesh

pytestmark = pytest.mark.integration

W7 = WorkerId("w7")


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[LockedMesh]:
    options = AccountsOptions(
        out=tmp_path / "accounts", worker=("code/w7",), router=("code/r1", "code/r2")
    )
    async with locked_mesh(tmp_path, options, witnesses=False, buckets=("code",)) as mesh:
        yield mesh


def body(text: str) -> dict[str, object]:
    return {"model": "mock", "max_tokens": 1, "prompt": text * 40}


def change_secret(mesh: LockedMesh, folder: Path) -> tuple[Path, Path]:
    """Do as the runbook says; return copies of the old and the new file."""
    made = mesh.options.out / "seeds/hash.code.secret"
    old = Path(shutil.copy(made, folder / "old"))
    made.unlink()
    mesh.write()  # what `kvmesh nats-accounts` does
    new = Path(shutil.copy(made, folder / "new"))
    assert old.read_bytes() != new.read_bytes()
    return old, new


async def test_a_rotation_loses_no_index_and_keeps_requests_at_their_worker_meanwhile(
    mesh: LockedMesh, eventually: Any, tmp_path: Path
) -> None:
    seeds = mesh.options.out / "seeds"
    old, new = change_secret(mesh, tmp_path)
    engine = Mocker(
        MockerOptions(port=0, kv_events_port=0, replay_port=0, timing_profile="instant")
    )
    await engine.start()

    @contextlib.asynccontextmanager
    async def router(
        name: str, secret: Path
    ) -> AsyncIterator[tuple[RouterServer, httpx.AsyncClient]]:
        http = HttpSettings(http_port=free_port(), drain_s=0.0)
        server = RouterServer(
            RouterSettings(
                bucket="code",
                router_id=name,
                http=http,
                cost=CostSettings(hash_secret_file=secret, predict_ttl_s=0.0),
                nats=mesh.settings(f"router.code.{name}"),
                parity_sample=0,
            )
        )
        async with (
            serving(server.serve, f"http://127.0.0.1:{http.http_port}") as url,
            httpx.AsyncClient(base_url=url, timeout=60) as client,
        ):
            yield server, client

    def sidecar(secret: Path) -> Any:
        login = NatsLogin(creds=seeds / "worker.code.w7.nk")
        options = RegisterOptions(
            worker_id="w7", model="mock", hash_secret_file=secret, login=login
        )
        return kvmesh.register_llm(engine.url, mesh.server.url, "code", options)

    async def overlap(client: httpx.AsyncClient, text: str) -> int:
        found = (await client.post("/v1/route", json=body(text))).json()
        return int(found["overlap_blocks"])

    async def send(client: httpx.AsyncClient, text: str) -> None:
        assert (await client.post("/v1/completions", json=body(text))).status_code == 200

    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(contextlib.AsyncExitStack())
        await first.enter_async_context(sidecar(old))
        server, client = await stack.enter_async_context(router("r1", old))
        await send(client, "Before the change. ")
        await eventually(lambda: server.index.blocks(W7) >= 40, what="the events")
        before = await overlap(client, "Before the change. ")

        # 1. The sidecar restarts with the new secret, and reads its engine's history again.
        await first.aclose()
        await stack.enter_async_context(sidecar(new))
        await eventually(lambda: server.router.strangers == {W7}, what="the other secret")
        await eventually(lambda: server.index.blocks(W7) >= 40, what="the events")
        await send(client, "While two are in use. ")
        meanwhile = await overlap(client, "While two are in use. ")
        ready = (await client.get("/ready")).json()

        # 2. Then routers: what their sidecars have told under the new secret counts at once.
        other, renewed = await stack.enter_async_context(router("r2", new))
        await eventually(lambda: W7 in other.router.heartbeats, what="the worker")
        await eventually(
            lambda: other.index.blocks(W7) == server.index.blocks(W7), what="the journal"
        )
        after = [
            await overlap(renewed, text)
            for text in ("Before the change. ", "While two are in use. ")
        ]
        strangers = other.router.strangers
    await engine.stop()

    assert before == after[0] > 40
    assert meanwhile == after[1] > 40
    assert any("--hash-secret-file" in line for line in ready["warnings"])
    assert strangers == set()
