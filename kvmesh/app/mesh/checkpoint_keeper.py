"""Keeps what sidecars know of their engines, and gives it to those that are started after them."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final

import msgspec

from kvmesh.actors.checkpoints import (
    PART_BYTES,
    CheckpointPart,
    OfferCheckpoint,
    OfferTaken,
    TakeCheckpoint,
)
from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.actors.wire import Subjects
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.journal.checkpoint_schedule import CheckpointSchedule, Kept, name_of
from kvmesh.errors import CodecError, TransportError
from kvmesh.observe import get_logger
from kvmesh.ports import Control, ObjectStore
from kvmesh.tasks import Jobs, to_next

LOOK_S: Final = 0.25
RETRY_S: Final = 2.0
"""A worker whose checkpoint cannot be had is let alone for so long."""

ANSWER_S: Final = 2.0
"""For one part: a sidecar that has all the engine held to write needs under 0.1 s."""

AT_ONCE: Final = 4
"""Checkpoints under way: each may take 64 MiB."""


class KeeperStatistics(msgspec.Struct, frozen=True):
    """Counts since the start: checkpoints stored, offered whole, and attempts that failed.

    `batches` are what the replica with the lease keeps: by worker, its engine's last batch in it,
    None for a checkpoint that an earlier holder stored.
    """

    stored: int
    offered: int
    failed: int
    batches: Mapping[WorkerId, int | None]


class CheckpointKeeper:
    """Looks at the workers' heartbeats while this replica `holds` the snapshots' lease.

    A sidecar whose engine published more than its replay buffer keeps cannot know what was before;
    the sidecar before it did. `holds` returns the lease's fencing token, None without it.
    """

    def __init__(
        self,
        beats: Callable[[], Iterable[WorkerHeartbeat]],
        holds: Callable[[], int | None],
        subjects: Subjects,
        schedule: CheckpointSchedule | None = None,
    ) -> None:
        self._beats = beats
        self._holds = holds
        self._subjects = subjects
        self._schedule = schedule or CheckpointSchedule()
        self._fence: int | None = None
        self._number = 0
        self._jobs = Jobs("checkpoints")
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._busy: set[tuple[str, WorkerId]] = set()
        self._retry_s: dict[tuple[str, WorkerId], float] = {}
        self._stored = self._offered = self._failed = 0
        self._log = get_logger()

    async def run(self, control: Control, objects: ObjectStore) -> None:
        """Look until cancelled."""
        try:
            while True:
                await asyncio.sleep(to_next(LOOK_S))
                await self._check(control, objects)
        finally:
            await self._jobs.close()

    def statistics(self) -> KeeperStatistics:
        """Return the present counts."""
        batches = {} if self._fence is None else self._schedule.batches()
        return KeeperStatistics(self._stored, self._offered, self._failed, batches)

    async def _check(self, control: Control, objects: ObjectStore) -> None:
        fence, now = self._holds(), time.monotonic()
        if fence is None:
            self._fence = None
            return
        if fence != self._fence:
            try:
                stored = {one.name: one.size for one in await objects.list()}
            except TransportError as error:
                self._log.warning("stored checkpoints cannot be listed", error=str(error))
                return
            self._fence, self._number = fence, 0
            await self._delete(objects, self._schedule.adopt(stored, now))
        for beat in self._beats():
            self._check_one(beat, control, objects, now)
        await self._delete(objects, self._schedule.forget(now))

    def _check_one(
        self, beat: WorkerHeartbeat, control: Control, objects: ObjectStore, now: float
    ) -> None:
        worker, schedule = beat.worker, self._schedule
        if isinstance(beat.engine_seq, int):
            if schedule.is_due(worker, beat.engine_seq, now):
                self._begin("take", worker, self._take(worker, control, objects))
        elif (
            beat.events
            and not beat.complete
            and (name := schedule.to_offer(worker, beat.incarnation, now))
        ):
            self._begin("offer", worker, self._offer(worker, name, control, objects))

    def _begin(self, what: str, worker: WorkerId, work: Coroutine[Any, Any, None]) -> None:
        """Run one operation at a time for a worker. One that waits for a sidecar that left does not
        block its successor.
        """
        key = what, worker
        if key in self._busy or time.monotonic() < self._retry_s.get(key, 0.0):
            work.close()
            return
        self._retry_s.pop(key, None)

        async def attempt() -> None:
            try:
                async with self._slots:
                    await work
            except (TransportError, CodecError) as error:
                self._failed += 1
                self._retry_s[key] = time.monotonic() + RETRY_S
                self._log.warning("checkpoint failed", worker=worker, error=str(error))
            finally:
                work.close()
                self._busy.discard(key)

        self._busy.add(key)
        self._jobs.start(attempt())

    async def _take(self, worker: WorkerId, control: Control, objects: ObjectStore) -> None:
        """Fetch a checkpoint, store it, and delete the one before."""
        subject = self._subjects.control(worker)
        part = await control.ask(
            subject, TakeCheckpoint(worker), CheckpointPart, timeout_s=ANSWER_S
        )
        data, seq = [part.data], part.seq
        for number in range(1, part.parts):
            wanted = TakeCheckpoint(worker, number, seq)
            part = await control.ask(subject, wanted, CheckpointPart, timeout_s=ANSWER_S)
            data.append(part.data)
        fence = self._holds()
        if fence is None or fence != self._fence:
            return
        self._number += 1
        name, whole = name_of(worker, fence, self._number), b"".join(data)
        await objects.put(name, whole)
        self._stored += 1
        before = self._schedule.stored(worker, Kept(name, seq, len(whole), time.monotonic()))
        await self._delete(objects, (before,) if before else ())

    async def _offer(
        self, worker: WorkerId, name: str, control: Control, objects: ObjectStore
    ) -> None:
        """Send a checkpoint to a sidecar that can go on from it, if its engine is the same."""
        data, subject = await objects.get(name), self._subjects.control(worker)
        parts = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]
        for number, part in enumerate(parts):
            offer = OfferCheckpoint(worker, number, len(parts), part)
            answer = await control.ask(subject, offer, OfferTaken, timeout_s=ANSWER_S)
            if answer.why:
                self._schedule.refused(worker)
                self._log.info("checkpoint is of no use", worker=worker, why=answer.why)
                return
        self._offered += 1

    async def _delete(self, objects: ObjectStore, names: Iterable[str]) -> None:
        for name in names:
            try:
                await objects.delete(name)
            except TransportError as error:
                self._log.warning("checkpoint not deleted", object=name, error=str(error))
