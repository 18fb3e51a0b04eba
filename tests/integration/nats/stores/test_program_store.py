"""Agents of programs in a real KV bucket: shared, kept over restarts, ended with their replica."""

import contextlib
import time
from collections.abc import Mapping

import pytest

from kvmesh.app.mesh import program_store
from kvmesh.app.mesh.plane import event_plane
from kvmesh.app.mesh.program_store import ProgramStore
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.settings.roles import NatsSettings
from tests.conftest import Eventually
from tests.unit.core.programs.test_sharing import Replica, key_of

pytestmark = pytest.mark.integration

ALIVE = {"r0": 1, "r1": 1}


async def shared(
    stack: contextlib.AsyncExitStack,
    server: NatsServer,
    place: str,
    replica: Replica,
    alive: Mapping[str, int] = ALIVE,
) -> ProgramStore:
    namespace, bucket = place.split("/")
    plane = event_plane(NatsSettings(nats_url=server.url, namespace=namespace), "tool")
    await plane.connect(patient=True)
    stack.push_async_callback(plane.close)
    store = ProgramStore(replica.sharing, plane, bucket, lambda: alive)
    await store.start()
    stack.push_async_callback(store.stop)
    return store


async def test_replicas_share_programs_and_a_new_one_knows_them_from_the_start(
    stack: contextlib.AsyncExitStack,
    nats_server: NatsServer,
    eventually: Eventually,
    namespace: str,
) -> None:
    place = f"{namespace}/shared"
    one, two, late, other = Replica("r0"), Replica("r1"), Replica("r2"), Replica("r3")
    await shared(stack, nats_server, place, one)
    await shared(stack, nats_server, place, two)
    now = time.monotonic()

    for number in range(200):
        one.begin(f"{number:03}", tokens=500, now=now)
        one.end(f"{number:03}", now=now)
    await eventually(lambda: len(two.governor.table) == 200)
    two.begin("000", tokens=900, now=now)
    await eventually(lambda: one.agent("000").phase == "running")
    await shared(stack, nats_server, place, late)
    await shared(stack, nats_server, f"{namespace}/other", other)

    assert len(late.governor.table) == 200
    assert late.agent("000").phase == "running"
    assert {late.agent(f"{number:03}").phase for number in range(1, 200)} == {"paused"}
    assert late.governor.statistics().reserved_tokens == one.governor.statistics().reserved_tokens
    assert len(other.governor.table) == 0


async def test_a_restarted_replica_ends_the_turns_of_its_life_before(
    stack: contextlib.AsyncExitStack,
    nats_server: NatsServer,
    eventually: Eventually,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(program_store, "SETTLE_EVERY_S", 0.0)
    place = f"{namespace}/restarted"
    one, two, again = Replica("r0"), Replica("r1"), Replica("r0", epoch=2)
    store = await shared(stack, nats_server, place, one)
    alive = dict(ALIVE)
    await shared(stack, nats_server, place, two, alive)
    one.begin("a", now=time.monotonic())
    await eventually(lambda: two.governor.table.find(key_of("a")) is not None)
    one.governor.updates.clear()
    await store.stop()

    alive["r0"] = 2
    await shared(stack, nats_server, place, again, alive)

    await eventually(lambda: again.agent("a").phase == two.agent("a").phase == "paused")
    assert again.governor.statistics().reserved_tokens == 60_000
    assert two.governor.statistics().reserved_tokens == 60_000
