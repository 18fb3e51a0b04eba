"""What must stay at a site: with the right keys, with stolen ones, and on NATS."""

import asyncio
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from kvmesh.actors.site_reporter import SiteDigest, digest_subject
from kvmesh.actors.wire import encode
from kvmesh.app.front.api_key import ApiKeyOptions, add_key
from kvmesh.core.buckets.spill import BucketHeat, BucketLoad
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions
from tests.integration.support.two_sites import LEAF, Site, two_sites
from tests.integration.support.waiting import until, until_ready

pytestmark = pytest.mark.integration

ENGINE = ("--timing-profile", "preble-70b", "--max-num-seqs", "8")


async def _usable(site: Site, key: str, other: str) -> None:
    async with httpx.AsyncClient(base_url=site.url, timeout=10) as client:
        await until_ready(client)
        head = {"authorization": f"Bearer {key}"}

        async def usable() -> bool:
            rows = (await client.get("/v1/status", headers=head)).json()["sites"]["sites"]
            return not next(one["why_not"] for one in rows if one["site"] == other)

        await until(usable)


async def _flood(site: Site, key: str, count: int, *more: tuple[str, str]) -> list[httpx.Response]:
    """Send so many prompts at once that nobody sent before."""
    fresh = uuid4().hex
    head = {"authorization": f"Bearer {key}", **dict(more)}
    async with httpx.AsyncClient(base_url=site.url, timeout=60, headers=head) as client:
        bodies = (
            {"model": "mock", "max_tokens": 1, "prompt": f"{fresh} {number} " * 200}
            for number in range(count)
        )
        return await asyncio.gather(*(client.post("/v1/completions", json=one) for one in bodies))


async def _joined(url: str) -> NatsConnection:
    connection = NatsConnection(NatsOptions(url=url, name="thief"))
    await connection.connect()
    return connection


async def test_data_that_must_stay_never_leaves(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    kept = add_key(ApiKeyOptions("kept", file=file, role=("infer",), residency=("a",)))
    free = add_key(ApiKeyOptions("free", file=file, role=("operate",)))
    async with two_sites(tmp_path, *ENGINE, front=("--api-keys", str(file))) as sites:
        await asyncio.gather(_usable(sites.a, free, "b"), _usable(sites.b, free, "a"))
        stays = await _flood(sites.a, kept, 24)
        roams = await _flood(sites.a, free, 24)
        lies = await _flood(sites.a, kept, 12, ("x-kvmesh-residency", "a,b"))
        stolen = await _flood(sites.b, kept, 1, ("x-kvmesh-from-site", "a"))
        # Who stole the leaf's key hears digests, and nothing of the meshes.
        thief = await _joined(f"nats://leaf:{LEAF}@{sites.a.server.url.removeprefix('nats://')}")
        heard: list[str] = []
        await thief.client.listen(
            ">", lambda subject, _reply, _data, _headers: heard.append(subject)
        )
        await until(lambda: len(heard) >= 4)
        told = {subject.split(".")[0] for subject in heard}
        mine = SiteDigest("b", "thief", True, (BucketLoad((), BucketHeat(0.0, 0.001, 99)),))
        forged = encode(mine)
        for subject in (digest_subject("b", "thief"), "a.rt.default.thief", "a.ev.default.w"):
            thief.client.publish_nowait(subject, forged)
        await thief.flush()
        lured = await _flood(sites.a, kept, 12)
        await thief.close()
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {free}"}) as client:
            status = (await client.get(f"{sites.a.url}/v1/status")).json()

    assert {one.status_code for one in (*stays, *roams, *lies, *lured)} == {200}
    assert {one.headers["x-kvmesh-site"] for one in (*stays, *lies, *lured)} == {"a"}
    assert {one.headers["x-kvmesh-site"] for one in roams} == {"a", "b"}
    assert stolen[0].status_code == 403
    assert "stays in a" in stolen[0].text
    assert told == {"kvmesh_sites"}
    assert status["statistics"]["garbage"] == 0, "nothing of the thief's came to the mesh"
