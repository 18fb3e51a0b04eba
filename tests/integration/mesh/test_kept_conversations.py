"""Conversations through meta-routers: each stays in its bucket and at its worker."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.core.buckets.placing import BucketPolicy
from tests.chaos.process import MeshProcess, fixed_ports
from tests.integration.support.two_stage_mesh import (
    QUESTIONS,
    SYSTEM,
    Kept,
    Turn,
    ask,
    converse,
    introduce,
    kept,
    two_stage_mesh,
)
from tests.integration.support.waiting import until_ready

pytestmark = pytest.mark.integration

POLICIES: tuple[BucketPolicy, ...] = ("round-robin", "prefix-spill", "prefix-hash")


async def test_conversations_and_sessions_stay_under_each_policy_over_two_meta_routers(
    nats_server: NatsServer, namespace: str
) -> None:
    async with two_stage_mesh(nats_server.url, namespace) as mesh:
        for policy in POLICIES:
            fronts = await asyncio.gather(mesh.front(policy), mesh.front(policy))
            names = [f"{policy}-{number}" for number in range(10)]

            alone = [await converse(fronts, name) for name in names[:2]]
            together = await asyncio.gather(*(converse(fronts, name) for name in names[2:]))
            sessions = await rewritten_sessions(fronts, policy)

            found = kept([*alone, *together])
            assert found.buckets == 1.0, policy
            assert kept(alone).workers == 1.0, policy
            assert found.workers > 0.8, policy  # a busy worker may lose some within its bucket
            assert found.hits > 0.85, policy
            assert kept(sessions).buckets == 1.0, policy
            if policy == "round-robin":
                assert Counter(one[0].bucket for one in sessions) == {"chat": 2, "code": 2}


async def rewritten_sessions(fronts: Sequence[httpx.AsyncClient], policy: str) -> list[list[Turn]]:
    """Have four sessions of three requests, of which no two have a word in common."""
    sessions: list[list[Turn]] = [[] for _ in range(4)]
    for turn in range(3):
        for number, turns in enumerate(sessions):
            said = [{"role": "user", "content": f"{turn}.{number}: {policy}"}]
            name = {"x-kvmesh-session": f"{policy} {number}"}
            turns.append(await ask(fronts[turn % 2], said, **name))
    return sessions


async def test_a_burst_behind_one_system_prompt_goes_to_one_bucket_and_others_take_turns(
    nats_server: NatsServer, namespace: str
) -> None:
    system = "You are the assistant of a bank, and you answer in one word. " * 40
    async with two_stage_mesh(nats_server.url, namespace) as mesh:
        front = await mesh.front()
        first = await converse([front], "first", system=system)

        burst = await asyncio.gather(
            *(converse([front], f"burst {number}", system=system) for number in range(5))
        )
        others = [await converse([front], f"other {number}", system="") for number in range(6)]

    assert {turn.bucket for chat in burst for turn in chat} == {first[0].bucket}
    assert sum(chat[0].cached_tokens > 2000 for chat in burst) >= 4
    buckets = [chat[0].bucket for chat in others]
    assert sorted(buckets[:2]) == ["chat", "code"]
    assert buckets == buckets[:2] * 3


async def test_replicas_in_turn_share_one_rotation(nats_server: NatsServer, namespace: str) -> None:
    async with two_stage_mesh(nats_server.url, namespace, ("only",)) as mesh:
        front = await mesh.front()
        rotate = {"x-kvmesh-router-mode": "round-robin"}

        sent: list[Turn] = []
        for number in range(40):
            said = [{"role": "user", "content": f"{number}"}]
            sent.append(await ask(front, said, **rotate))
            await asyncio.sleep(0.02)  # bookings travel in 5 ms

    workers = [turn.worker for turn in sent]
    counts = Counter(workers).values()
    assert len(counts) == 4
    assert max(counts) - min(counts) <= 2
    assert sum(one == other for one, other in pairwise(workers)) <= 8  # 20 for two rotations


async def test_a_killed_meta_router_knows_its_conversations_when_it_is_back(
    nats_server: NatsServer, namespace: str, tmp_path: Path
) -> None:
    (port,) = fixed_ports(1)
    url = f"http://127.0.0.1:{port}"
    nats = ("--nats-url", nats_server.url, "--namespace", namespace)
    arguments = ("meta-router", "--http-port", str(port), *nats)
    process = MeshProcess("front", url, arguments, tmp_path / "front.log")
    async with (
        two_stage_mesh(nats_server.url, namespace) as mesh,
        httpx.AsyncClient(base_url=url, timeout=60) as front,
    ):
        try:
            process.start()
            await mesh.wait_known(front)
            system = {"role": "system", "content": SYSTEM}
            texts = [introduce(f"Nurse {number}") for number in range(12)]
            chats = [[system, {"role": "user", "content": text}] for text in texts]
            first = [await ask(front, chat) for chat in chats]
            await asyncio.sleep(0.1)  # longer than homes wait to be told
            process.kill()
            process.start()
            await until_ready(front)
            second = []
            for chat, turn in zip(chats, first, strict=True):
                chat += [
                    {"role": "assistant", "content": turn.text},
                    {"role": "user", "content": QUESTIONS[0]},
                ]
                second.append(await ask(front, chat))
        finally:
            process.kill()

    assert [turn.bucket for turn in second] == [turn.bucket for turn in first]
    assert [turn.worker for turn in second] == [turn.worker for turn in first]
    assert {turn.bucket for turn in first} == {"chat", "code"}


@pytest.mark.chaos
async def test_two_buckets_hit_what_one_bucket_of_all_workers_does(
    nats_server: NatsServer, namespace: str
) -> None:
    async with two_stage_mesh(nats_server.url, f"{namespace}-1", ("only",)) as mesh:
        alone = await many_chats([await mesh.front()], "only")
    async with two_stage_mesh(nats_server.url, namespace) as mesh:
        for policy in POLICIES:
            fronts = await asyncio.gather(mesh.front(policy), mesh.front(policy))
            found = await many_chats(fronts, policy)

            assert found.buckets >= 0.98, policy
            assert found.workers >= min(0.98, alone.workers - 0.01), policy
            assert found.hits >= alone.hits - 0.02, policy


async def many_chats(fronts: Sequence[httpx.AsyncClient], name: str) -> Kept:
    """Have 40 chats one after another, then 160, eight at a time."""
    chats = [await converse(fronts, f"{name} {number}") for number in range(40)]
    slots = asyncio.Semaphore(8)

    async def one(number: int) -> list[Turn]:
        async with slots:
            return await converse(fronts, f"{name} {number} of many")

    return kept([*chats, *await asyncio.gather(*map(one, range(160)))])
