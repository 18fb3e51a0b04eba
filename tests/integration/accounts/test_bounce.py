"""A stolen key has the server write for it: each pen, each foreign subject, each role.

They are tried on a real server, in both forms that `kvmesh nats-accounts` writes.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kvmesh.actors.site_reporter import digest_subject
from kvmesh.actors.wire import Subjects
from kvmesh.app.ops.nats_isolation import SYSTEM
from kvmesh.app.ops.nats_members import AccountsOptions
from kvmesh.transport.nats.jetstream.api import JetStream
from kvmesh.transport.nats.layout import home_bucket, meta_bucket, session_bucket, snapshot_bucket
from tests.integration.support.locked_mesh import LockedMesh, Witness, locked_mesh
from tests.integration.support.pens import (
    EVIL,
    PENS,
    Attack,
    Pen,
    Thief,
    ack,
    answer,
    api_answer,
    message_read,
    pull,
    push,
    trace,
    use,
)

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CHAT, CODE, POOL = (Subjects("kvmesh", bucket) for bucket in ("chat", "code", "pool"))
SESSIONS, HOMES = session_bucket(CHAT), home_bucket("kvmesh")
META = meta_bucket("kvmesh")

THIEVES = {
    "worker": Thief(
        label="worker.chat.w0",
        names=("worker", "chat", "w0"),
        home="worker:chat:w0",
        own=CHAT.heartbeats("w0"),
        heard_in="bucket:chat",
        stored=CHAT.events("w0"),
        written=CHAT.heartbeats("w0"),
    ),
    "pool": Thief(
        label="worker.pool.any",
        names=("worker", "pool", "p0"),
        home="worker:pool:any",
        own=POOL.heartbeats("p0"),
        heard_in="worker:pool:any",
        stored=POOL.events("p0"),
        written=POOL.heartbeats("p0"),
    ),
    "meta-router": Thief(
        label="meta-router",
        names=("meta-router",),
        home="meta",
        own="own.subject",
        heard_in="meta",
        stored=f"$KV.{HOMES}.x",
        stream=f"KV_{HOMES}",
        written=f"$KV.{HOMES}.y",
    ),
    "site": Thief(
        label="site.us",
        names=("site", "us"),
        home="site:us",
        own=digest_subject("us", "x"),
        heard_in="site:us",
        written=digest_subject("us", "y"),
    ),
    "admin": Thief(
        label="admin.chat",
        names=("admin",),
        home="bucket:chat",
        own=CHAT.control("w1"),
        heard_in="bucket:chat",
        stream=CHAT.stream(),
        read=f"KV_{SESSIONS}",
    ),
    "meta-admin": Thief(
        label="admin",
        names=("admin",),
        home="meta",
        own="own.subject",
        heard_in="meta",
        stream=f"KV_{HOMES}",
        read=f"KV_{HOMES}",
    ),
} | {
    role: Thief(
        label=f"router.chat.{name}",
        names=("router", "chat", name),
        home="bucket:chat",
        own=CHAT.control("w1"),
        heard_in="bucket:chat",
        stored=f"$KV.{SESSIONS}.x",
        stream=f"KV_{SESSIONS}",
        read=f"KV_{META}",
        written=CHAT.control("w1"),
        asked=CHAT.control("w1"),
    )
    for role, name in (("router", "r0"), ("follower", "f0"))
}


def subjects_of(bucket: Subjects) -> list[str]:
    """Return what exists for a bucket's processes, and no thief of another account may reach."""
    stream, sessions = bucket.stream(), session_bucket(bucket)
    return [
        bucket.events("v1"),
        bucket.heartbeats("v1"),
        bucket.control("v1"),
        bucket.router_control("r1"),
        bucket.bookings("r1"),
        bucket.routers("r1"),
        f"$KV.{META}.lease.snap.{bucket.bucket}",
        f"$KV.{META}.manifest.{bucket.bucket}",
        f"$KV.{sessions}.x",
        f"$O.{snapshot_bucket(bucket)}.C.x",
        f"$JS.API.STREAM.PURGE.{stream}",
        f"$JS.API.STREAM.DELETE.{stream}",
        f"$JS.API.STREAM.UPDATE.{stream}",
        f"$JS.API.CONSUMER.CREATE.{stream}.x",
        f"_INBOX.router.{bucket.bucket}.r1.x",
        f"_INBOX.worker.{bucket.bucket}.v1.x",
    ]


OF_ALL = ["$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.PING.CONNZ", "_INBOX.meta-router.x"]


def foreign(role: str) -> list[str]:
    """Return the subjects a thief tries. A worker tries those of its own bucket, too."""
    own = {"worker": subjects_of(CHAT), "pool": subjects_of(POOL)[2:]}.get(role, [])
    homes = [] if "meta" in role else [f"$KV.{HOMES}.x", f"$JS.API.STREAM.PURGE.KV_{HOMES}"]
    sites = [] if "meta" in role else [digest_subject("eu", "x"), digest_subject("ap", "x")]
    return [*subjects_of(CODE), *own, *homes, *sites, *OF_ALL]


HEARD = dict.fromkeys(
    [
        *(subject for role in THIEVES for subject in foreign(role)),
        *(
            subject
            for thief in THIEVES.values()
            for subject in (thief.own, thief.written)
            if subject
        ),
    ]
)


class Scene:
    """The mesh, and what is heard in each of its accounts."""

    def __init__(self, mesh: LockedMesh, witnesses: dict[str, Witness]) -> None:
        self.mesh = mesh
        self.witnesses = witnesses

    async def streams(self, account: str) -> dict[str, Any]:
        """Return the streams of an account and, but for events, what is in them."""
        jetstream = JetStream(self.witnesses[account].connection)
        listed = (await jetstream.call("STREAM.LIST", None, dict[str, Any]))["streams"] or []
        return {
            one["config"]["name"]: (
                one["created"],
                one["config"],
                None if "_EVENTS_" in one["config"]["name"] else one["state"],
            )
            for one in listed
        }

    async def clean(self, account: str) -> None:
        """Delete the streams that a thief left: the server goes on writing for them."""
        if account.startswith(("worker:", "site:")):
            return
        for name in await self.streams(account):
            if name.startswith(EVIL):
                await JetStream(self.witnesses[account].connection).delete_stream(name)

    async def all_streams(self, home: str) -> dict[str, Any]:
        kept = ("bucket:chat", "bucket:code", "bucket:pool", "meta")
        return {account: await self.streams(account) for account in kept if account != home}


@pytest_asyncio.fixture(
    loop_scope="module",
    scope="module",
    params=["accounts.conf", pytest.param("operator", marks=pytest.mark.chaos)],
)
async def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    folder: Path = tmp_path_factory.mktemp("bounce")
    options = AccountsOptions(
        out=folder / "accounts",
        operator=request.param == "operator",
        worker=("chat/w0", "chat/w1", "code/v1", "pool/*"),
        router=("chat/r0", "chat/f0", "code/r1", "pool/r0"),
        site="eu",
        peer_site=("us", "ap"),
    )
    async with locked_mesh(
        folder, options, witnesses=True, buckets=("chat", "code", "pool")
    ) as mesh:
        witnesses = {one.name: await mesh.witness(one.name, *HEARD) for one in mesh.accounts}
        honest = await mesh.login("worker.chat.w1")
        await honest.client.listen(
            CHAT.control("w1"), lambda _, reply, *__: reply_to(honest.client, reply)
        )
        await JetStream(honest).publish(CHAT.events("w1"), b"an event")
        router, meta = await mesh.login("router.chat.r0"), await mesh.login("meta-router")
        await JetStream(router).publish(f"$KV.{SESSIONS}.first", b"a session")
        await JetStream(meta).publish(f"$KV.{HOMES}.first", b"a home")
        yield Scene(mesh, witnesses)


def reply_to(client: Any, reply: bytes) -> None:
    if reply:
        client.publish_nowait(reply.decode(), b"done")


ROWS = [(pen, role) for pen, roles in PENS.items() for role in roles]


@pytest.mark.parametrize(
    ("pen", "role"), ROWS, ids=[f"{pen.__name__}-{role}" for pen, role in ROWS]
)
async def test_no_pen_of_the_server_writes_where_a_stolen_key_may_not(
    scene: Scene, pen: Pen, role: str
) -> None:
    thief = THIEVES[role]
    attack = Attack(thief, await scene.mesh.login(thief.label, *thief.names))
    others = [one for one in scene.witnesses.values() if one.account != thief.home]
    before = await scene.all_streams(thief.home)
    for witness in scene.witnesses.values():
        witness.received.clear()

    for target in foreign(role):
        await use(pen, attack, target)
    own = thief.written if thief.home == "meta" and pen.__name__ in IN_OWN_NAME else thief.own
    await use(pen, attack, own)

    await scene.witnesses[thief.heard_in].wait_for(own)
    for witness in others:
        await witness.sentinel()
    reached = [
        f"{witness.account}: {subject}"
        for witness in others
        for subject in witness.received
        if subject in foreign(role) and not (witness.account == SYSTEM and is_api(subject))
    ]
    assert not reached
    assert await scene.all_streams(thief.home) == before
    await attack.connection.close()
    await scene.clean(thief.home)


def is_api(subject: str) -> bool:
    """Return whether JetStream hears it: in the system account, as a request of the account it
    comes from. What others' streams hold shows that it did no harm.
    """
    return subject.startswith("$JS.API.")


@pytest.mark.parametrize("pen", [ack, api_answer, message_read, push, pull, trace, answer])
async def test_a_stolen_router_key_deletes_no_table_of_its_own_bucket(
    scene: Scene, pen: Pen
) -> None:
    """What it may not delete by its rights it may not by a pen: JetStream's API does not count as
    a listener for deliveries, and takes no request with the fields of an ack.
    """
    thief = THIEVES["router"]
    attack = Attack(thief, await scene.mesh.login(thief.label, *thief.names))
    kept = f"$KV.{META}.kept"
    revision = await attack.jetstream.publish(kept, b"a manifest")
    # A deletion is an empty request.
    await attack.jetstream.publish(f"$KV.{SESSIONS}.empty", b"")
    witness = scene.witnesses[thief.heard_in]
    witness.received.clear()

    for operation in ("DELETE", "PURGE"):
        await use(pen, attack, f"$JS.API.STREAM.{operation}.KV_{META}")
    await use(pen, attack, thief.own)

    await witness.wait_for(thief.own)
    found = await attack.jetstream.last_message(f"KV_{META}", kept)
    assert found is not None
    assert found.seq == revision
    await attack.connection.close()


IN_OWN_NAME = ("publish", "trace")
"""For these the server asks the thief's own permissions."""
