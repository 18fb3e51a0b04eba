"""`kvmesh snapshot list|inspect|verify|take`: look after the snapshots of a bucket."""

import asyncio
import hashlib
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Annotated

import msgspec
from cyclopts import App, Parameter
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kvmesh.actors.messages import RouterHeartbeat, TakeSnapshot
from kvmesh.actors.snapshotter import manifest_key
from kvmesh.actors.wire import Subjects, decode
from kvmesh.app.mesh.plane import event_plane, subjects_for
from kvmesh.app.process.running import Stop, run
from kvmesh.app.process.running_mesh import find_mesh
from kvmesh.bounds import counted
from kvmesh.core.index.snapshot_manifest import Manifest, SnapshotGeneration, decode_manifest
from kvmesh.core.index.snapshot_reading import Snapshot, decode_snapshot
from kvmesh.errors import CodecError, ConfigError, KvMeshError, TransportError
from kvmesh.observe import configure_logging
from kvmesh.ports import Control, EventPlane, KeyValue, ObjectInfo, ObjectStore
from kvmesh.settings.member_name import check_name
from kvmesh.settings.roles import NatsSettings
from kvmesh.settings.types import Flat

LISTEN_S = 2.5
TAKE_TIMEOUT_S = 30.0
ANSWER_WITHIN_S = 10.0
POLL_S = 0.1
NARROWEST = 100
"""Columns: names must be whole, since `inspect` takes them."""

command = App(name="snapshot", help="List, inspect, verify and take snapshots of a bucket's index.")
Nats = Annotated[NatsSettings, Flat]
DEFAULT_NATS = NatsSettings()
Bucket = Annotated[
    str,
    Parameter(help="Bucket; default: all of a running `kvmesh up`, or else `default`."),
]
RouterId = Annotated[
    str,
    Parameter(
        name="--router-id",
        help="Router whose key is given, where processes log in to NATS with keys: the tool speaks "
        "as that router. Any name for a key `bucket/*`.",
    ),
]


class Shelf(msgspec.Struct, frozen=True):
    """One bucket's snapshots, and the event plane that leads to them."""

    subjects: Subjects
    plane: EventPlane
    keys: KeyValue
    objects: ObjectStore

    async def manifest(self) -> Manifest:
        """Return the kept generations. Raises `CodecError`, `TransportError`."""
        entry = await self.keys.get(manifest_key(self.subjects.bucket))
        return decode_manifest(None if entry is None else entry.value)


Work = Callable[[str, Shelf], Awaitable[int]]
"""What is done with one bucket; returns an exit code."""


@asynccontextmanager
async def open_shelf(bucket: str, nats: NatsSettings, router_id: str) -> AsyncGenerator[Shelf]:
    """Connect to the bucket's stores, as `router_id` if there is one. Raises `TransportError`."""
    subjects = subjects_for(nats, bucket)
    if router_id:
        # As a program that follows the bucket: it leaves the streams' settings alone.
        plane = event_plane(nats, "follower", bucket, check_name(router_id, "--router-id"))
    else:
        plane = event_plane(nats, "snapshot tool")
    await plane.connect()
    try:
        keys, objects = await plane.stores(bucket)
        yield Shelf(subjects, plane, keys, objects)
    finally:
        await plane.close()


def find_buckets(bucket: str, nats: NatsSettings) -> tuple[Sequence[str], NatsSettings]:
    """Return the buckets that are meant, and their NATS server: those of a running `kvmesh up`
    where no server is named. Raises `ConfigError` where several run.
    """
    mesh = None if nats.nats_url else find_mesh("--nats-url")
    if mesh is None:
        return (bucket or "default",), nats
    found = (bucket,) if bucket else mesh.buckets
    return found, replace(nats, nats_url=mesh.nats_url, namespace=mesh.namespace)


def run_command(bucket: str, nats: NatsSettings, router_id: str, work: Work) -> None:
    """Do `work` for each bucket that is meant; end with the worst exit code."""
    configure_logging("warning", "auto")
    buckets, found = find_buckets(bucket, nats)
    codes: list[int] = []

    async def main(stop: Stop) -> None:
        del stop
        for one in buckets:
            async with open_shelf(one, found, router_id) as shelf:
                codes.append(await work(one, shelf))

    run(main)
    sys.exit(max(codes))


@command.command(name="list")
def list_command(
    bucket: Bucket = "", *, router_id: RouterId = "", nats: Nats = DEFAULT_NATS
) -> None:
    """Show the kept generations of BUCKET and other stored objects."""

    async def work(bucket: str, shelf: Shelf) -> int:
        manifest = await shelf.manifest()
        stored = await shelf.objects.list()
        if not stored and not manifest.generations:
            sys.stdout.write(f"bucket {bucket} has no snapshot\n")
            return 0
        console = Console()
        console.width = max(console.width, NARROWEST)
        console.print(shelf_table(bucket, manifest, stored, time.time()))
        return 0

    run_command(bucket, nats, router_id, work)


def shelf_table(
    bucket: str, manifest: Manifest, stored: Sequence[ObjectInfo], now_s: float
) -> Table:
    """Return the kept generations, newest first, then what else is stored; `now_s` since 1970."""
    table = Table(title=f"snapshots of bucket {bucket}", title_justify="left", box=SIMPLE_HEAD)
    table.padding = 0
    table.add_column("object", no_wrap=True)
    for column in ("sequence", "blocks", "bytes", "age", ""):
        table.add_column(column, justify="right")
    written_s = {info.name: info.modified_s for info in stored}
    for number, one in enumerate(manifest.generations):
        kept = "newest" if not number else f"{number} older"
        age = in_words(now_s - written_s[one.name]) if one.name in written_s else "lost"
        figures = (one.sequence, f"{one.blocks:,}", f"{one.size:,}", age, kept)
        table.add_row(one.name, *map(str, figures))
    for info in stored:
        if info.name not in manifest.names():
            age = in_words(now_s - info.modified_s)
            table.add_row(info.name, "", "", f"{info.size:,}", age, "not kept")
    return table


def in_words(seconds: float) -> str:
    """Return a time as people say it: 40 s, 5 min, 3 h, 2 d."""
    for length, unit, most in ((1.0, "s", 90.0), (60.0, "min", 90.0), (3600.0, "h", 48.0)):
        if seconds / length < most:
            return f"{max(0.0, seconds / length):.0f} {unit}"
    return f"{seconds / 86400.0:.0f} d"


@command.command
def inspect(
    bucket: Bucket = "",
    name: str = "",
    *,
    router_id: RouterId = "",
    nats: Nats = DEFAULT_NATS,
) -> None:
    """Show what snapshot NAME (default: the newest) of BUCKET holds."""

    async def work(bucket: str, shelf: Shelf) -> int:
        generation = find_generation(await shelf.manifest(), bucket, name)
        snapshot = await read(shelf.objects, generation)
        table = Table(title=f"{generation.name}", title_justify="left")
        for column in ("worker", "epoch", "next event", "gap", "truncated"):
            table.add_column(column)
        for one in snapshot.records:
            cut = one.worker in snapshot.truncated
            row = (one.worker, one.epoch, one.next_seq, one.gap, cut)
            table.add_row(*map(str, row))
        console = Console()
        console.print(table)
        console.print(
            f"stream created {snapshot.position.created}, sequence "
            f"{snapshot.position.sequence}, {counted(generation.blocks, 'block')}, "
            f"{generation.size:,} bytes, sha256 {generation.sha256}"
        )
        return 0

    run_command(bucket, nats, router_id, work)


@command.command
def verify(bucket: Bucket = "", *, router_id: RouterId = "", nats: Nats = DEFAULT_NATS) -> None:
    """Read and check every kept snapshot of BUCKET; exit code 1 if one is bad or none exists."""

    async def work(bucket: str, shelf: Shelf) -> int:
        manifest = await shelf.manifest()
        bad = not manifest.generations
        for one in manifest.generations:
            try:
                await read(shelf.objects, one)
            except KvMeshError as error:
                bad = True
                sys.stdout.write(f"BAD  {one.name}: {error}\n")
            else:
                sys.stdout.write(
                    f"OK   {one.name}: {counted(one.blocks, 'block')} at {one.sequence}\n"
                )
        if not manifest.generations:
            sys.stdout.write(f"bucket {bucket} has no snapshot\n")
        return int(bad)

    run_command(bucket, nats, router_id, work)


@command.command
def take(bucket: Bucket = "", *, router_id: RouterId = "", nats: Nats = DEFAULT_NATS) -> None:
    """Have the replica of BUCKET that holds the lease write a snapshot now, and wait for it."""

    async def work(bucket: str, shelf: Shelf) -> int:
        before = (await shelf.manifest()).generations[:1]
        if not await ask_routers(shelf, before):
            sys.stdout.write(f"{before[0].name}: nothing new since\n")
            return 0
        try:
            async with asyncio.timeout(TAKE_TIMEOUT_S):
                after = before
                while after == before:
                    await asyncio.sleep(POLL_S)
                    after = (await shelf.manifest()).generations[:1]
        except TimeoutError as error:
            raise TransportError(
                f"bucket {bucket}: no new snapshot in {TAKE_TIMEOUT_S:g} s; was there anything "
                "new? The routers' logs say why one was abandoned"
            ) from error
        sys.stdout.write(f"{after[0].name}: {counted(after[0].blocks, 'block')}\n")
        return 0

    run_command(bucket, nats, router_id, work)


async def ask_routers(shelf: Shelf, newest: Sequence[SnapshotGeneration]) -> bool:
    """Tell every live router of the bucket; only the lease holder acts on it.

    Return False, and tell nobody, where none has read anything behind `newest`.
    """
    subjects = shelf.subjects
    routers: dict[str, RouterHeartbeat] = {}

    def on_heartbeat(subject: str, data: bytes) -> None:
        del subject
        try:
            beat = decode(data, RouterHeartbeat)
        except CodecError:
            return
        if beat.decides:
            routers[beat.router] = beat

    subscription = await shelf.plane.bus.subscribe(subjects.routers(), on_heartbeat)
    await asyncio.sleep(LISTEN_S)
    await subscription.close()
    if not routers:
        raise TransportError(
            f"bucket {subjects.bucket}: no router is running (or another namespace?)"
        )
    held = {(one.created, one.sequence) for one in newest}
    if {(beat.created, beat.applied_sequence) for beat in routers.values()} <= held:
        return False
    control = await shelf.plane.control()
    try:
        for router in sorted(routers):
            await ask_patiently(control, subjects.router_control(router))
    finally:
        await control.close()
    return True


async def ask_patiently(control: Control, subject: str) -> None:
    """Ask one router until it answers: one that just started does so a second after it serves.

    Raises `TransportError` when it does not within 10 s.
    """
    deadline_s = asyncio.get_running_loop().time() + ANSWER_WITHIN_S
    while True:
        try:
            await control.ask(subject, TakeSnapshot(), bool)
        except TransportError:
            if asyncio.get_running_loop().time() > deadline_s:
                raise
            await asyncio.sleep(POLL_S)
        else:
            return


def find_generation(manifest: Manifest, bucket: str, name: str) -> SnapshotGeneration:
    """Return the generation called `name`, or the newest. Raises `ConfigError`."""
    for one in manifest.generations:
        if name in ("", one.name):
            return one
    known = ", ".join(one.name for one in manifest.generations) or "none"
    raise ConfigError(f"bucket {bucket} has no snapshot {name!r}; kept are: {known}")


async def read(objects: ObjectStore, generation: SnapshotGeneration) -> Snapshot:
    """Return the snapshot, checked. Raises `TransportError`, `CodecError`."""
    data = await objects.get(generation.name)
    if hashlib.sha256(data).hexdigest() != generation.sha256:
        raise CodecError("sha256 differs from the manifest's")
    snapshot = decode_snapshot(data)
    if snapshot.position.sequence != generation.sequence:
        raise CodecError(f"holds sequence {snapshot.position.sequence}, not {generation.sequence}")
    return snapshot
