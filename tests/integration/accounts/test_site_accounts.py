"""Sites joined by leaf nodes with the accounts of `kvmesh nats-accounts`: only digests cross, each
in its own site's name, also by stolen keys and by a server of the thief's own.
"""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvmesh.actors.site_reporter import digest_subject
from kvmesh.actors.wire import Subjects
from kvmesh.app.ops.nats_isolation import SYSTEM, site_account
from kvmesh.app.ops.nats_members import AccountsOptions
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.app.ops.site_server import site_conf
from kvmesh.transport.nats.jetstream.api import JetStream
from kvmesh.transport.nats.layout import home_bucket, snapshot_bucket
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions
from kvmesh.transport.nats.trust.nkey import KeyPair
from tests.chaos.process import fixed_ports
from tests.integration.support.locked_mesh import LockedMesh, Witness
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

NAMES = ("eu", "us", "ap")
CHAT = Subjects("eu", "chat")
OF_A_MESH = (
    CHAT.events("w0"),
    CHAT.heartbeats("w0"),
    CHAT.routers("r0"),
    CHAT.bookings("r0"),
    CHAT.usage("r0"),
    CHAT.control("w0"),
    CHAT.router_control("r0"),
    f"$O.{snapshot_bucket(CHAT)}.C.x",
    f"$KV.{home_bucket('eu')}.x",
    "_INBOX.router.chat.r0.x",
    f"$JS.API.STREAM.PURGE.{CHAT.stream()}",
    "$JS.API.STREAM.NAMES",
)
"""What a site's processes say to each other, in words of the site eu."""

DIGESTS = tuple(digest_subject(name, "x") for name in NAMES)


@dataclass
class Sites:
    """Three sites, eu joined by both others; in each account of each a witness of everything."""

    meshes: dict[str, LockedMesh]
    witnesses: dict[tuple[str, str], Witness]
    port: int
    """Where eu's server takes leaf nodes."""

    async def say(self, connection: NatsConnection, *subjects: str) -> None:
        for subject in subjects:
            connection.client.publish_nowait(subject, b"x")
        await connection.flush()

    async def heard(self) -> set[tuple[str, str, str]]:
        """Return what was heard since: site, account, subject."""
        for witness in self.witnesses.values():
            await witness.sentinel()
        found = {
            (site, account, subject)
            for (site, account), witness in self.witnesses.items()
            for subject in witness.received
            if subject != "sentinel"
        }
        for witness in self.witnesses.values():
            witness.received.clear()
        return found


def seed(mesh: LockedMesh, label: str) -> str:
    return (mesh.options.out / "seeds" / f"{label}.nk").read_text().strip()


def joining(mesh: LockedMesh, hub: LockedMesh, name: str, port: int) -> str:
    """Return the leaf node of site `name` that joins `hub`, as docs/operate/sites.md has it."""
    remote = {"url": f"nats-leaf://127.0.0.1:{port}", "account": site_account("eu")}
    if mesh.options.operator:
        account = (mesh.options.out / "signing" / "account.site.eu.nk").read_bytes().strip()
        remote["account"] = KeyPair(account).public_key
        remote["credentials"] = str(hub.options.out / "creds" / f"site.{name}.creds")
    else:
        remote["nkey"] = seed(hub, f"site.{name}")
    return f"leafnodes: {msgspec.json.encode({'remotes': [remote]}).decode()}\n"


@pytest.fixture(params=[False, True], ids=["keys", "operator"])
async def sites(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sites]:
    (port,) = fixed_ports(1)
    meshes: dict[str, LockedMesh] = {}
    async with contextlib.AsyncExitStack() as stack:
        for name in NAMES:
            others = NAMES[1:] if name == "eu" else ("eu",)
            options = AccountsOptions(
                out=tmp_path / name / "accounts",
                namespace=name,
                site=name,
                peer_site=others,
                operator=request.param,
                worker=("chat/w0",),
                router=("chat/r0",),
                biller=("chat/books",),
            )
            mesh = meshes[name] = LockedMesh(options, tmp_path / name)
            mesh.write(witnesses=True)
            hub = name == "eu"
            listen = f'leafnodes {{ listen: "127.0.0.1:{port}", no_advertise: true }}\n'
            await mesh.start(listen if hub else joining(mesh, meshes["eu"], name, port))
            stack.push_async_callback(mesh.close)
        witnesses = {
            (name, one.name): await mesh.witness(one.name, *OF_A_MESH, *DIGESTS)
            for name, mesh in meshes.items()
            for one in mesh.accounts
            if one.name != SYSTEM
        }
        found = Sites(meshes, witnesses, port)
        await joined(found)
        yield found


async def joined(sites: Sites) -> None:
    """Wait until digests pass both ways."""
    metas = {name: await mesh.login("meta-router") for name, mesh in sites.meshes.items()}

    async def all_heard() -> bool:
        for name, meta in metas.items():
            await sites.say(meta, digest_subject(name, "x"))
        heard = {(site, subject) for site, _, subject in await sites.heard()}
        pairs = [("eu", "us"), ("us", "eu"), ("eu", "ap"), ("ap", "eu")]
        return all((site, digest_subject(name, "x")) in heard for site, name in pairs)

    await until(all_heard)
    await sites.heard()


async def test_digests_cross_and_nothing_else_does(sites: Sites) -> None:
    for (site, _account), witness in sites.witnesses.items():
        if site == "eu":
            await sites.say(witness.connection, *OF_A_MESH)
    meta = await sites.meshes["eu"].login("meta-router")
    await sites.say(meta, digest_subject("eu", "x"))

    found = await sites.heard()

    told = {(site, account, subject) for site, account, subject in found if site != "eu"}
    digest = digest_subject("eu", "x")
    assert told == {(site, where, digest) for site in ("us", "ap") for where in ("site:eu", "meta")}


async def test_a_stolen_key_of_a_site_speaks_and_hears_for_that_site_alone(
    sites: Sites, eventually: Any
) -> None:
    thief = await sites.meshes["eu"].login("site.us")
    heard: list[str] = []
    await thief.client.listen(DIGESTS[0], lambda subject, *_: heard.append(subject))
    for count, subject in enumerate((">", "*.>", DIGESTS[1], DIGESTS[2], *OF_A_MESH), 1):
        await thief.client.listen(subject, lambda subject, *_: heard.append(subject))
        await eventually(lambda count=count: thief.statistics().errors == count, what=subject)
    refused = thief.statistics().errors

    for count, subject in enumerate((DIGESTS[0], DIGESTS[2], *OF_A_MESH), refused + 1):
        await sites.say(thief, subject)
        await eventually(lambda count=count: thief.statistics().errors == count, what=subject)
    await sites.say(thief, DIGESTS[1])
    meta = await sites.meshes["eu"].login("meta-router")
    await sites.say(meta, DIGESTS[0])
    found = await sites.heard()

    await eventually(lambda: heard == [DIGESTS[0]])
    assert {one for one in found if one[2] != DIGESTS[0]} == {
        ("eu", "site:us", DIGESTS[1]),
        ("eu", "meta", DIGESTS[1]),
    }


@pytest.mark.parametrize(
    "label",
    ["worker.chat.w0", "router.chat.r0", "biller.chat.books", "admin.chat", "admin"],
)
async def test_no_other_key_of_a_site_tells_of_it(
    sites: Sites, eventually: Any, label: str
) -> None:
    mesh = sites.meshes["eu"]
    thief = await mesh.login(label, *(["admin"] if label.startswith("admin") else []))

    for count, subject in enumerate(DIGESTS, 1):
        await sites.say(thief, subject)
        await eventually(lambda count=count: thief.statistics().errors == count, what=subject)

    assert not await sites.heard()


async def test_a_stolen_key_of_a_meta_router_tells_of_its_own_site_alone(
    sites: Sites, eventually: Any
) -> None:
    thief = await sites.meshes["us"].login("meta-router")

    for count, subject in enumerate((DIGESTS[0], DIGESTS[2]), 1):
        await sites.say(thief, subject)
        await eventually(lambda count=count: thief.statistics().errors == count, what=subject)

    assert not await sites.heard()


async def test_a_server_of_a_thief_that_joins_with_a_stolen_key_has_no_more_rights(
    sites: Sites, tmp_path: Path
) -> None:
    """Rights of a leaf node are kept by the server that it joins, whatever its own ones are."""
    hub = sites.meshes["eu"]
    remote = {"url": f"nats-leaf://127.0.0.1:{sites.port}"}
    if hub.options.operator:
        remote["credentials"] = str(hub.options.out / "creds" / "site.us.creds")
    else:
        remote["nkey"] = seed(hub, "site.us")
    config = f"leafnodes: {msgspec.json.encode({'remotes': [remote]}).decode()}\n"
    server = NatsServer(tmp_path / "thief", config=config)
    await server.start()
    thief = NatsConnection(NatsOptions(url=server.url, name="thief"))
    await thief.connect()
    heard: list[str] = []
    await thief.client.listen(">", lambda subject, *_: heard.append(subject))
    for subject in (*OF_A_MESH, *DIGESTS):
        await thief.client.listen(subject, lambda subject, *_: heard.append(subject))
    try:
        meta = await hub.login("meta-router")

        async def joined() -> bool:
            await sites.say(meta, DIGESTS[0])
            return DIGESTS[0] in heard

        await until(joined)
        await sites.heard()
        heard.clear()

        await sites.say(thief, *OF_A_MESH, *DIGESTS)
        await until(lambda: len(heard) >= 2 * len(OF_A_MESH + DIGESTS), what="its own, twice each")
        told = await sites.heard()
        heard.clear()
        for (site, _account), witness in sites.witnesses.items():
            if site == "eu":
                await sites.say(witness.connection, *OF_A_MESH, DIGESTS[2])
        await sites.say(meta, DIGESTS[0])
        await until(lambda: heard.count(DIGESTS[0]) == 2)
        of_others = set(heard)
        streams = JetStream(thief, timeout_s=1.0)
        listed = await streams.call("STREAM.NAMES", None, dict[str, Any])
    finally:
        await thief.close()
        await server.stop()

    assert told == {("eu", account, DIGESTS[1]) for account in ("site:us", "meta")}
    assert of_others == {DIGESTS[0]}
    assert listed["streams"] is None, "its own server's: none of eu"


async def test_sites_of_one_command_are_joined_in_pairs(tmp_path: Path, eventually: Any) -> None:
    """Three servers as `kvmesh up --sites 3` has them, by passwords: nobody relays for others."""
    ports = fixed_ports(2)
    heard: dict[str, set[str]] = {name: set() for name in NAMES}
    async with contextlib.AsyncExitStack() as stack:
        servers: list[NatsServer] = []
        meshes: dict[str, NatsConnection] = {}
        for number, name in enumerate(NAMES):
            hubs = {
                hub: f"nats-leaf://{name}:secret@127.0.0.1:{port}"
                for hub, port in zip(NAMES[:number], ports, strict=False)
            }
            listen = ports[number] if number < len(ports) else 0
            others = [one for one in NAMES if one != name]
            config = site_conf(name, others, listen=listen, hubs=hubs, leaf="secret")
            server = NatsServer(tmp_path / name, config=config)
            await server.start()
            stack.push_async_callback(server.stop)
            servers.append(server)
            mesh = meshes[name] = NatsConnection(NatsOptions(url=server.url, name=name))
            await mesh.connect()
            stack.push_async_callback(mesh.close)
            ear = heard[name]
            await mesh.client.listen(digest_subject(), lambda one, *_, ear=ear: ear.add(one))

        async def all_heard() -> bool:
            for name, mesh in meshes.items():
                mesh.client.publish_nowait(digest_subject(name, "x"), b"x")
                mesh.client.publish_nowait(CHAT.events("w0"), b"x")
                await mesh.flush()
            return all(ear == set(DIGESTS) for ear in heard.values())

        await until(all_heard)
        url = servers[0].url.replace("nats://", "nats://us:secret@")
        thief = NatsConnection(NatsOptions(url=url, name="thief"))
        await thief.connect()
        stack.push_async_callback(thief.close)
        for name in NAMES:
            thief.client.publish_nowait(digest_subject(name, "forged"), b"x")
        await eventually(lambda: thief.statistics().errors == 2)
        await eventually(lambda: digest_subject("us", "forged") in heard["eu"])
        await all_heard()

    forged = {name: {one for one in ear if one.endswith("forged")} for name, ear in heard.items()}
    assert forged == {"eu": {digest_subject("us", "forged")}, "us": set(), "ap": set()}
