"""Bindings of sessions in a real KV bucket: shared, kept over restarts, forgotten in time."""

import contextlib

import pytest

from kvmesh.app.mesh.plane import event_plane
from kvmesh.app.mesh.session_store import SessionStore
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.routing.sessions import SessionOptions, Sessions, session_key
from kvmesh.settings.roles import NatsSettings
from tests.conftest import Eventually

pytestmark = pytest.mark.integration

W1, W2 = WorkerId("w1"), WorkerId("w2")


async def replica(
    stack: contextlib.AsyncExitStack, server: NatsServer, name: str, ttl_s: float = 3600.0
) -> tuple[Sessions, SessionStore]:
    sessions = Sessions(SessionOptions(affinity="soft", ttl_s=ttl_s))
    namespace, bucket = name.split("/")
    plane = event_plane(NatsSettings(nats_url=server.url, namespace=namespace), "tool")
    await plane.connect(patient=True)
    stack.push_async_callback(plane.close)
    store = SessionStore(sessions, await plane.sessions(bucket, int(ttl_s)))
    await store.start()
    stack.push_async_callback(store.stop)
    return sessions, store


async def test_replicas_share_bindings_and_a_new_one_knows_them_from_the_start(
    stack: contextlib.AsyncExitStack,
    nats_server: NatsServer,
    eventually: Eventually,
    namespace: str,
) -> None:
    one, store = await replica(stack, nats_server, f"{namespace}/shared")
    two, _ = await replica(stack, nats_server, f"{namespace}/shared")
    keys = [session_key(f"chat {number}") for number in range(200)]

    for key in keys:
        one.bind(key, W1, 0.0)
    await eventually(lambda: all(two.find(key, 0.0) == W1 for key in keys))
    two.bind(keys[0], W2, 1.0)
    await eventually(lambda: one.find(keys[0], 1.0) == W2)
    await store.stop()
    late, _ = await replica(stack, nats_server, f"{namespace}/shared")
    other, _ = await replica(stack, nats_server, f"{namespace}/other")

    assert late.find(keys[0], 0.0) == W2
    assert [late.find(key, 0.0) for key in keys[1:]] == [W1] * 199
    assert late.statistics().sessions == 200
    assert other.statistics().sessions == 0


async def test_what_was_bound_last_is_told_at_the_end(
    stack: contextlib.AsyncExitStack,
    nats_server: NatsServer,
    eventually: Eventually,
    namespace: str,
) -> None:
    one, store = await replica(stack, nats_server, f"{namespace}/ending")
    two, _ = await replica(stack, nats_server, f"{namespace}/ending")

    one.bind("a" * 32, W1, 0.0)
    await store.stop()

    await eventually(lambda: two.find("a" * 32, 0.0) == W1)


async def test_the_store_forgets_what_nobody_uses(
    stack: contextlib.AsyncExitStack,
    nats_server: NatsServer,
    eventually: Eventually,
    namespace: str,
) -> None:
    one, _ = await replica(stack, nats_server, f"{namespace}/fleeting", ttl_s=1.0)
    one.bind("a" * 32, W1, 0.0)
    await eventually(lambda: not one.updates)

    async def known() -> int:
        async with contextlib.AsyncExitStack() as inner:
            late, _ = await replica(inner, nats_server, f"{namespace}/fleeting", ttl_s=1.0)
            return late.statistics().sessions

    while await known():
        pass
