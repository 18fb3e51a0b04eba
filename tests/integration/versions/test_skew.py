"""Fleets of two versions, in real processes: nothing is lost on the way up, nor on the way back."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from kvmesh.app.ops.nats_server import NatsServer
from tests.integration.support.alarm_history import AlarmHistory
from tests.integration.versions.fleet import (
    BUCKET,
    ROUTERS,
    SIDECARS,
    Fleet,
    Load,
    Role,
    Seen,
    Version,
    watching,
)

pytestmark = pytest.mark.integration

ALL: Final[tuple[Role, ...]] = ("w0", "w1", "r0", "r1", "front")
NOW: Final[Mapping[Role, Version]] = dict.fromkeys(ALL, "now")

SETTLE_S = 1.2
"""So long heartbeats take to tell who reads what, and a snapshot or two to be written."""

MOST_ASKED = 3
"""Dumps that a replica may ask for where it lacks something: one each 2 s."""

MANY = 200


@contextlib.asynccontextmanager
async def running_fleet(
    folder: Path, versions: Mapping[Role, Version]
) -> AsyncIterator[tuple[Fleet, Load, Seen]]:
    """Run a fleet, with what goes over its server; `versions` are by role."""
    server = NatsServer(folder / "store", log_path=folder / "nats.log")
    await server.start()
    fleet = Fleet(folder, server)
    try:
        fleet.engine.start()
        for role, version in versions.items():
            fleet.start(role, version)
        async with watching(server) as seen:
            yield fleet, Load(fleet), seen
    finally:
        await fleet.client.aclose()
        fleet.kill()
        await server.stop()


async def replace(fleet: Fleet, version: Version, *roles: Role) -> None:
    """Go to another version, one process after the other, as docs/operate/upgrade.md says."""
    for role in roles:
        epoch = await fleet.epoch(role)
        fleet.stop(role)
        fleet.start(role, version)
        if role in SIDECARS:
            await fleet.until_usable(role, epoch)
        else:
            await fleet.until_ready(role)
        await asyncio.sleep(SETTLE_S)


def lines(fleet: Fleet, role: Role, event: str) -> list[dict[str, Any]]:
    """Return the lines of a log that say `event`."""
    reported = (json.loads(line) for line in fleet.said(role).splitlines() if f'"{event}"' in line)
    return [one for one in reported if one["event"] == event]


async def test_an_older_replica_leaves_alone_what_it_cannot_read(tmp_path: Path) -> None:
    """What used to destroy the history: the holder of the lease cannot read the journal."""
    first: Mapping[Role, Version] = {"w0": "now", "r0": "now", "front": "now"}
    history = AlarmHistory(bucket=BUCKET, job="routers", instance="r0")
    async with running_fleet(tmp_path, first) as (fleet, load, seen), fleet.door("r0") as r0:
        await fleet.until_ready("r0", "front")
        async with load.running():
            await fleet.until_holds("r0", MANY)
            before = await fleet.until_stored(seen, MANY)
            fleet.start("w1", "only-next")
            fleet.start("r1", "next")
            await fleet.until_usable("w1", 0)
            await fleet.until_ready("r1")
            await fleet.until_holds("r1", 2 * MANY)
            asked = seen.asked
            for _ in range(3):
                await asyncio.sleep(SETTLE_S)
                await history.scrape(r0)
        ready = await fleet.answer("r0", "/ready")
        trusts = {one: await fleet.trusts(one) for one in ROUTERS}
        holder = (await fleet.status("r0"))["snapshotter"]["holder"]

    assert not load.failed
    assert {router for router, _ in load.trusts[-20:]} == {"r1"}
    assert ready is not None
    assert ready.status_code == 503
    assert "9.9.9" in ready.json()["reason"]
    assert trusts == {
        "r0": {"w0": "exact", "w1": "degraded"},
        "r1": {"w0": "exact", "w1": "exact"},
    }
    assert (holder, seen.asked - asked) == (False, 0)
    assert not seen.emptied()
    assert min(one.blocks for one in seen.generations.values() if one.sequence > before) > 0
    [reported] = lines(fleet, "r0", "newer format met")
    assert (reported["written_by"], reported["format"]) == ("9.9.9", 2)
    [alarms] = history.firing(tmp_path, history.last_s())
    assert "KvmeshFormatUnread" in alarms


@pytest.mark.chaos
@pytest.mark.timeout(120)
async def test_a_format_begins_when_the_last_router_reads_it(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, NOW) as (fleet, load, seen):
        await fleet.until_ready("r0", "r1", "front")
        async with load.running():
            await fleet.until_holds("r1", MANY)
            await replace(fleet, "next", "r0", "w0")
            mixed = set(seen.formats)
            held = [await fleet.blocks("r0"), await fleet.blocks("r1")]
            await replace(fleet, "next", "r1", "w1")
            await fleet.until_writes(seen, 2)
            await fleet.until_holds("r1", MANY)
        await fleet.until_agreed()
        doubts = [(await fleet.status(one))["indexer"]["mismatches"] for one in ROUTERS]

    assert (mixed, seen.formats) == ({1}, {1, 2})
    assert min(held) > MANY
    assert not load.failed
    assert not seen.emptied()
    assert seen.asked <= MOST_ASKED
    assert {trust for _, trust in load.trusts[-20:]} == {"exact"}
    assert doubts == [0, 0]


@pytest.mark.chaos
@pytest.mark.timeout(120)
async def test_an_older_router_alone_behind_newer_ones_serves_what_they_knew(
    tmp_path: Path,
) -> None:
    newer: Mapping[Role, Version] = {"w0": "next", "r0": "next", "front": "now"}
    async with running_fleet(tmp_path, newer) as (fleet, load, seen):
        await fleet.until_ready("r0", "front")
        async with load.running():
            await fleet.until_holds("r0", MANY)
            await fleet.until_writes(seen, 2)
            await fleet.until_stored(seen, MANY)
        held = await fleet.blocks("r0")
        fleet.stop("r0")
        fleet.start("r0", "now")
        await fleet.until_ready("r0")
        await fleet.until_holds("r0", held)
        unread = (await fleet.status("r0"))["unread"]
        fleet.start("r1", "next")
        await fleet.until_ready("r1")
        await fleet.until_reads_all("r0")
        fleet.stop("r1")
        async with load.running():
            await fleet.until_takes("r0")

    assert len(unread) == 1
    assert "manifest format 2, of kvmesh 9.9.9" in unread[0]
    assert not seen.emptied()


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_up_a_version_and_back_under_load_costs_no_more_than_restarts(tmp_path: Path) -> None:
    """Also with a start with the workers down."""
    plain, mixed = await asyncio.gather(
        there_and_back(tmp_path / "plain", "now"),
        there_and_back(tmp_path / "mixed", "next"),
    )

    assert mixed <= 1.2 * plain


async def there_and_back(folder: Path, newer: Version) -> float:
    """Return how many journal records a request took, of a fleet that went up and back."""
    async with running_fleet(folder, NOW) as (fleet, load, seen):
        await fleet.until_ready("r0", "r1", "front")
        async with load.running():
            await fleet.until_holds("r1", MANY)
            await replace(fleet, newer, "r0", "r1", "w0", "w1")
            await replace(fleet, "now", "w0", "w1", "r1", "r0")
        held = await fleet.blocks("r0")
        await fleet.until_stored(seen, MANY)
        for role in ("w0", "w1", "r0", "r1"):
            fleet.stop(role)
        fleet.start("r0", "now")
        await fleet.until_holds("r0", held)

    assert not load.failed
    assert not seen.emptied()
    assert seen.asked <= MOST_ASKED
    return seen.journal / load.answered
