"""When a sidecar is asked for what it knows of its engine, and when another is offered that."""

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from kvmesh.core.blocks.events import WorkerId

PREFIX: Final = "sidecar-"
"""What the names of checkpoints begin with: they lie among the snapshots."""

_NAME: Final = re.compile(re.escape(PREFIX) + r"(.+)-([0-9]{1,19})-([0-9]{1,19})")


class CheckpointOptions(msgspec.Struct, frozen=True):
    """Times in seconds.

    A checkpoint is due `batches` behind the last one, a quarter of what an engine's replay buffer
    usually keeps, or once anything changed and `bytes_per_s` allow another; never within `pause_s`.
    One is offered again after `again_s`, `offers` times to one incarnation. That of a worker not
    heard for `keep_s` is deleted.
    """

    batches: int = 2_500
    bytes_per_s: float = 100_000.0
    pause_s: float = 1.0
    again_s: float = 2.0
    offers: int = 10
    keep_s: float = 3600.0


class Kept(NamedTuple):
    """A stored checkpoint: at batch `seq`, None where that was not looked at."""

    name: str
    seq: int | None
    size: int
    stored_s: float


class _Offers(msgspec.Struct, eq=False):
    """What was offered to one incarnation of a worker's sidecar."""

    incarnation: int
    name: str
    count: int = 0
    last_s: float = float("-inf")


class CheckpointSchedule:
    """The newest checkpoint of every worker, and what is to be done about it.

    Kept by the replica that holds the snapshots' lease, from when it takes it on. One row a worker.
    """

    def __init__(self, options: CheckpointOptions | None = None) -> None:
        self._options = options or CheckpointOptions()
        self._kept: dict[WorkerId, Kept] = {}
        self._offers: dict[WorkerId, _Offers] = {}
        self._received_s: dict[WorkerId, float] = {}

    def adopt(self, sizes: Mapping[str, int], now: float) -> list[str]:
        """Begin with the objects that are stored, by name; return those that are superseded."""
        newest: dict[WorkerId, tuple[tuple[int, int], str]] = {}
        known = {name: read for name in sizes if (read := read_name(name)) is not None}
        for name, (worker, order) in known.items():
            newest[worker] = max(newest.get(worker, (order, name)), (order, name))
        kept = {worker: name for worker, (_, name) in newest.items()}
        self._kept = {one: Kept(name, None, sizes[name], now) for one, name in kept.items()}
        self._received_s = dict.fromkeys(kept, now)
        self._offers.clear()
        return sorted(known.keys() - kept.values())

    def batches(self) -> dict[WorkerId, int | None]:
        """Return up to which batch of its engine each kept checkpoint goes; None: not looked at."""
        return {worker: kept.seq for worker, kept in self._kept.items()}

    def is_due(self, worker: WorkerId, seq: int, now: float) -> bool:
        """Return whether a checkpoint is due of a sidecar that read its engine's batch `seq`."""
        self._received_s[worker] = now
        kept, options = self._kept.get(worker), self._options
        if kept is None or kept.seq is None:
            return True
        if seq == kept.seq or now < kept.stored_s + options.pause_s:
            return False
        if not 0 < seq - kept.seq < options.batches:
            return True
        return now >= kept.stored_s + kept.size / options.bytes_per_s

    def stored(self, worker: WorkerId, kept: Kept) -> str:
        """Note a new checkpoint; return the name of the one that it supersedes, "" for none."""
        before = self._kept.get(worker)
        self._kept[worker] = kept
        return before.name if before else ""

    def to_offer(self, worker: WorkerId, incarnation: int, now: float) -> str:
        """Return what to offer to a sidecar that misses part of its engine's history, "" for
        nothing; it counts as offered.
        """
        self._received_s[worker] = now
        kept = self._kept.get(worker)
        if kept is None or not incarnation:
            return ""
        offers = self._offers.get(worker)
        if offers is None or (offers.incarnation, offers.name) != (incarnation, kept.name):
            offers = self._offers[worker] = _Offers(incarnation, kept.name)
        wait = offers.count >= self._options.offers or now < offers.last_s + self._options.again_s
        if wait:
            return ""
        offers.count += 1
        offers.last_s = now
        return kept.name

    def refused(self, worker: WorkerId) -> None:
        """Note that what was offered last is of no use to who was offered it."""
        self._offers[worker].count = self._options.offers

    def forget(self, now: float) -> Iterable[str]:
        """Drop the workers that were not heard for long; return what to delete of theirs."""
        late = [one for one, at in self._received_s.items() if now >= at + self._options.keep_s]
        names: list[str] = []
        for worker in late:
            del self._received_s[worker]
            self._offers.pop(worker, None)
            kept = self._kept.pop(worker, None)
            names += [kept.name] if kept else []
        return names


def name_of(worker: WorkerId, fence: int, number: int) -> str:
    """Return the name of the so-many-th checkpoint that the lease `fence` stores of a worker."""
    return f"{PREFIX}{worker}-{fence}-{number}"


def read_name(name: str) -> tuple[WorkerId, tuple[int, int]] | None:
    """Return the worker, and what orders its checkpoints; None for the name of something else."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    worker, fence, number = match.groups()
    return WorkerId(worker), (int(fence), int(number))
