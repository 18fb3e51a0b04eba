"""A real nats-server with the accounts of `kvmesh nats-accounts`, and a witness in each of them."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import msgspec

from kvmesh.app.mesh.nats_plane import connection_options, nats_plane
from kvmesh.app.ops.nats_accounts import write_server
from kvmesh.app.ops.nats_isolation import Account, plan_accounts
from kvmesh.app.ops.nats_keys import public_key
from kvmesh.app.ops.nats_members import AccountsOptions, Member, keyed_members
from kvmesh.app.ops.nats_rights import Rights
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.app.ops.nats_streams import StreamsOptions, make_streams
from kvmesh.settings.roles import NatsSettings
from kvmesh.transport.nats.link.client import Deliver
from kvmesh.transport.nats.link.connection import NatsConnection
from kvmesh.transport.nats.plane import NatsPlane

STREAM_BYTES = 32 * 1024**2
ALL = Rights((">",), (">",))
PATIENCE_S = 20


class Witness:
    """Hears what is said on some subjects of one account, and may say anything there.

    `received` has the subject that was listened to: what a consumer delivers bears another.
    """

    def __init__(self, account: str, connection: NatsConnection) -> None:
        self.account = account
        self.connection = connection
        self.received: list[str] = []
        self._updates = asyncio.Event()

    async def listen(self, *subjects: str) -> None:
        """Hear these subjects, and what begins with one of them."""
        for subject in (*subjects, "sentinel"):
            for pattern in (subject, f"{subject}.>"):
                await self.connection.client.listen(pattern, self._ear(subject))
        await self.connection.flush()

    def _ear(self, subject: str) -> Deliver:
        def receive(_subject: str, _reply: bytes, _data: bytes, _headers: bytes | None) -> None:
            self.received.append(subject)
            self._updates.set()

        return receive

    async def wait_for(self, subject: str, count: int = 1) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.received.count(subject) < count:
                self._updates.clear()
                await self._updates.wait()

    async def sentinel(self) -> None:
        """Return when what this account was sent before has been heard."""
        count = self.received.count("sentinel") + 1
        self.connection.client.publish_nowait("sentinel", b"")
        await self.wait_for("sentinel", count)


class LockedMesh:
    """The server, and the doors in. `labels` of members are ROLE.BUCKET.NAME, as of their files."""

    def __init__(self, options: AccountsOptions, folder: Path) -> None:
        self.options = options
        self.members: list[Member] = []
        self.accounts: list[Account] = []
        self.stack = contextlib.AsyncExitStack()
        self.log = folder / "nats.log"
        self.server = NatsServer(folder / "store", log_path=self.log)

    def write(self, *, witnesses: bool = False) -> None:
        """Write what the server reads. A witness may hear and say all in its account."""
        self.members = keyed_members(self.options)
        self.accounts = plan_accounts(self.members, self.options.namespace, self.options.site)
        if witnesses:
            self.accounts = [self._witnessed(account) for account in self.accounts]
        write_server(self.options, self.accounts)

    def _witnessed(self, account: Account) -> Account:
        witness = Member("admin", ALL, "witness", account.name)
        key = public_key(self.options.out / "seeds" / witness.file_name, None)
        members = (*account.members, msgspec.structs.replace(witness, public_key=key))
        return msgspec.structs.replace(account, members=members)

    async def start(self, more: str = "") -> None:
        """Start the server; `more` of its configuration is no account."""
        config = (self.options.out / "accounts.conf").read_text() + more
        self.server = NatsServer(self.log.parent / "store", log_path=self.log, config=config)
        await self.server.start()

    async def reload(self) -> None:
        """Give the server what was written last."""
        config = (self.options.out / "accounts.conf").read_text()
        (self.log.parent / "store/nats.conf").write_text(config)
        await reload(self.server, self.log)

    async def streams(self, *buckets: str) -> None:
        keys = self.options.out / ("creds" if self.options.operator else "seeds")
        nats = NatsSettings(nats_url=self.server.url, stream_max_bytes=STREAM_BYTES)
        await make_streams(StreamsOptions(bucket=buckets, admin_keys=keys, nats=nats))

    def settings(self, label: str) -> NatsSettings:
        out = self.options.out
        if self.options.operator:
            creds = out / "creds" / f"{label}.creds"
        else:
            creds = out / "seeds" / f"{label}.nk"
        return NatsSettings(
            nats_url=self.server.url,
            stream_max_bytes=STREAM_BYTES,
            nats_creds=creds,
        )

    async def login(self, label: str, *names: str) -> NatsConnection:
        """Log in; `names` are role, bucket and name, for the inbox (default: of the label)."""
        role, *rest = names or label.split(".")
        connection = NatsConnection(connection_options(self.settings(label), role, *rest))
        await connection.connect()
        self.stack.push_async_callback(connection.close)
        return connection

    async def plane(self, label: str) -> NatsPlane:
        """Return the event plane of a member, connected."""
        plane = nats_plane(self.settings(label), *label.split("."))
        await plane.connect()
        self.stack.push_async_callback(plane.close)
        return plane

    async def witness(self, account: str, *subjects: str) -> Witness:
        label = f"admin.witness.{account}"
        witness = Witness(account, await self.login(label, "witness"))
        await witness.listen(*subjects)
        return witness

    async def close(self) -> None:
        await self.stack.aclose()
        await self.server.stop()


@contextlib.asynccontextmanager
async def locked_mesh(
    folder: Path, options: AccountsOptions, *, witnesses: bool, buckets: Sequence[str]
) -> AsyncGenerator[LockedMesh]:
    """Give a mesh that runs, its streams made."""
    mesh = LockedMesh(options, folder)
    mesh.write(witnesses=witnesses)
    try:
        await mesh.start()
        await mesh.streams(*buckets)
        yield mesh
    finally:
        await mesh.close()


async def reload(server: NatsServer, log: Path) -> None:
    """Do what `nats-server --signal reload` does, and wait until it is done."""
    done = reloads(log)
    server.program.signal(signal.SIGHUP)
    async with asyncio.timeout(PATIENCE_S):
        while reloads(log) == done:  # noqa: ASYNC110  a log
            await asyncio.sleep(0.01)


def reloads(log: Path) -> int:
    """Return how often the server of this log was reloaded."""
    return log.read_text().count("Reloaded server configuration")
