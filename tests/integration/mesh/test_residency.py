"""What must stay at a site: with the right keys, with stolen ones, and on NATS."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from kvmesh.actors.site_reporter import SiteDigest, digest_subject
from kvmesh.actors.wire import decode, encode
from kvmesh.app.front.api_key import ApiKeyOptions, add_key
from kvmesh.core.buckets.spill import BucketHeat, BucketLoad
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions
from tests.integration.support.two_sites import LEAF, Site, TwoSites, two_sites
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


async def _one(site: Site, key: str, path: str, *more: tuple[str, str]) -> httpx.Response:
    head = [("authorization", f"Bearer {key}"), *more]
    async with httpx.AsyncClient(base_url=site.url, timeout=60) as client:
        body = {"model": "mock", "max_tokens": 1, "prompt": "Hello"}
        return await client.post(path, json=body, headers=head)


class Thief:
    """Who stole what b's server joins a's with, and listens there."""

    def __init__(self, sites: TwoSites) -> None:
        server = sites.a.server.url.removeprefix("nats://")
        self.connection = NatsConnection(NatsOptions(url=f"nats://b:{LEAF}@{server}", name="thief"))
        self.heard: list[tuple[str, bytes]] = []

    async def listen(self) -> None:
        await self.connection.connect()
        client = self.connection.client
        await client.listen(
            digest_subject("a"),
            lambda subject, _reply, data, _headers: self.heard.append((subject, data)),
        )

    async def say(self, subject: str, data: bytes) -> None:
        self.connection.client.publish_nowait(subject, data)
        await self.connection.flush()

    async def digests(self, count: int = 3) -> list[SiteDigest]:
        """Return the next ones of a."""
        self.heard.clear()
        await until(lambda: len(self.heard) >= count)
        return [decode(data, SiteDigest) for _, data in self.heard]


@dataclass
class Kept:
    sites: TwoSites
    a: str
    b: str
    free: str


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Kept]:
    """Two sites, and three keys: of data that stays at a, at b, and of data that may roam."""
    file = tmp_path / "keys.toml"
    in_a = add_key(ApiKeyOptions("in-a", file=file, role=("infer",), residency=("a",)))
    in_b = add_key(ApiKeyOptions("in-b", file=file, role=("infer",), residency=("b",)))
    free = add_key(ApiKeyOptions("free", file=file, role=("operate",)))
    async with two_sites(tmp_path, *ENGINE, front=("--api-keys", str(file))) as sites:
        await asyncio.gather(_usable(sites.a, free, "b"), _usable(sites.b, free, "a"))
        yield Kept(sites, in_a, in_b, free)


def _where(answers: list[httpx.Response]) -> set[str]:
    assert {one.status_code for one in answers} == {200}
    return {one.headers["x-kvmesh-site"] for one in answers}


async def test_data_that_must_stay_never_leaves(kept: Kept) -> None:
    a, b = kept.sites.a, kept.sites.b

    assert _where(await _flood(a, kept.a, 24)) == {"a"}
    assert _where(await _flood(a, kept.free, 24)) == {"a", "b"}
    assert _where(await _flood(b, kept.b, 24)) == {"b"}
    assert _where(await _flood(a, kept.a, 12, ("x-kvmesh-residency", "a,b"))) == {"a"}
    assert _where(await _flood(a, kept.free, 24, ("x-kvmesh-from-site", "b"))) == {"a"}


async def test_a_stolen_key_is_refused_where_its_data_may_not_be(kept: Kept) -> None:
    a, b = kept.sites.a, kept.sites.b
    lies = [
        (),
        (("x-kvmesh-from-site", "a"),),
        (("x-kvmesh-from-site", "b"), ("x-kvmesh-residency", "a,b")),
        (("x-kvmesh-residency", "b"), ("x-kvmesh-residency", "a")),
        (("x-kvmesh-roles", "operate"), ("x-kvmesh-key", "free"), ("x-kvmesh-site", "a")),
        (("x-kvmesh-bucket", "default"),),
    ]

    answers = [
        await _one(site, key, path, *lie)
        for site, key in ((b, kept.a), (a, kept.b))
        for path in ("/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/route")
        for lie in lies
        if not (path == "/v1/route" and lie)
    ]

    assert {one.status_code for one in answers} == {403}
    stays = [one for one in answers if "stays in" in one.text]
    assert len(stays) >= 2 * 3 * len(lies)


async def test_digests_have_nothing_of_data_that_must_stay(kept: Kept) -> None:
    thief = Thief(kept.sites)
    await thief.listen()
    mine = [one.encode() for one in ("in-a", "hospital", "needle")]

    async def ask(key: str) -> list[SiteDigest]:
        head = {"authorization": f"Bearer {key}", "x-kvmesh-tenant": "hospital"}
        prompt = "needle " * 400
        async with httpx.AsyncClient(base_url=kept.sites.a.url, timeout=60, headers=head) as one:
            for _ in range(4):
                body = {"model": "mock", "max_tokens": 1, "prompt": prompt}
                assert (await one.post("/v1/completions", json=body)).status_code == 200
        return await thief.digests()

    of_kept = await ask(kept.a)
    raw = b"".join(data for _, data in thief.heard)
    of_free = await ask(kept.free)
    await thief.connection.close()

    assert not any(one.hot for one in of_kept)
    assert any(one.hot for one in of_free)
    assert not [word for word in mine if word in raw]


async def test_what_a_stolen_key_of_a_leaf_forges_moves_no_data_that_must_stay(kept: Kept) -> None:
    a, thief = kept.sites.a, Thief(kept.sites)
    await thief.listen()
    idle = BucketLoad((), BucketHeat(0.0, 0.001, 99))
    (old, *_) = await thief.digests(1)

    # As b it is b: it may make that one look idle. As a, or as a's own processes, it is nobody.
    await thief.say(digest_subject("b", "thief"), encode(SiteDigest("b", "thief", True, (idle,))))
    await thief.say(digest_subject("b", "thief"), encode(SiteDigest("a", "thief", True, (idle,))))
    await thief.say(digest_subject("a", "thief"), encode(old))
    for subject in ("a.rt.default.thief", "a.ev.default.w", "a.ctl.default.w"):
        await thief.say(subject, encode(old))
    refusals = thief.connection.statistics().errors
    lured = await _flood(a, kept.a, 12)
    await thief.connection.close()
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {kept.free}"}) as client:
        status = (await client.get(f"{a.url}/v1/status")).json()

    assert refusals == 4
    assert _where(lured) == {"a"}
    assert status["statistics"]["garbage"] == 0, "nothing of the thief's came to the mesh"
