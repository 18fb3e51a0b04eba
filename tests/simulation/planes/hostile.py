"""Somebody with a stolen key: what it puts into the journal and on the bus, drawn from a seed."""

import random
from typing import Final

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.index.index import KvIndex
from kvmesh.core.journal.ordering import Cursor
from tests.doubles.sim.faults import draw_plan
from tests.simulation.planes.event_plane import SUBJECTS
from tests.simulation.planes.snapshot_plane import SnapshotPlane

EVERY_S: Final = 0.02
STRANGERS: Final = 6

U64: Final = 2**64 - 1
NUMBERS: Final = (0, 1, 2, 10, -1, 2**53, 2**61, 2**62 - 1, 2**62, 2**62 + 1, 2**63 - 1, 2**63, U64)
RUNS: Final = (b"", bytes(8), b"\xff" * 8, bytes(range(1, 17)), b"\x01" * 7)
JUNK: Final = (b"", b"\xc1", b"\x91" * 5000, b"[" * 5000, b'{"stream":"X","seq":7}', bytes(500))
TEXTS: Final = ("", "w0", "x" * 5000, "http://w:1", "\u0130")
VALUES: Final[tuple[object, ...]] = (
    *NUMBERS,
    *TEXTS,
    float("nan"),
    float("inf"),
    -1.0,
    None,
    [],
    [[]],
    {},
    True,
)


class HostilePlane(SnapshotPlane):
    """A bucket with snapshots into which a stranger writes each `EVERY_S`, until `until_s`.

    It writes as workers of its own, as one that lives (w0: its key is stolen) with epochs nobody
    reaches, and asks the sidecars for what cannot be. All that `SnapshotPlane` checks at each step
    holds of the honest workers, but that w0 is known while it is spoken for.
    """

    def __init__(self, seed: int, until_s: float) -> None:
        without = frozenset({"recreate", "truncate"})
        super().__init__(seed, draw_plan(random.Random(seed), until_s, without))
        self._rng = random.Random(seed + 1_000_000)
        self._until_s = until_s
        self.acts = 0
        self.sim.at(EVERY_S, self._act)

    def check_against_model(self, index: KvIndex, worker: WorkerId, cursor: Cursor) -> None:
        """Hold what the honest wrote themselves against what they wrote."""
        if worker in self.engines and cursor.epoch < 2**53:
            super().check_against_model(index, worker, cursor)

    def _act(self) -> None:
        if self.sim.now >= self._until_s:
            return
        self.acts += 1
        rng = self._rng
        match rng.randrange(4):
            case 0:
                self.journal.store(SUBJECTS.events(f"s{rng.randrange(STRANGERS)}"), self._record())
            case 1:
                stolen = rng.choice((2**62, 2**62 + 1, U64, -1))
                data = [1, stolen, rng.choice(NUMBERS), [[2], [0, 0, b"\x07" * 8]]]
                self.journal.store(SUBJECTS.events("w0"), msgspec.msgpack.encode(data))
            case 2:
                worker = rng.choice(tuple(self.engines))
                self.bus.publish(SUBJECTS.control(worker), self._resync(worker))
            case _:
                name = f"s{rng.randrange(STRANGERS)}"
                kind = rng.choice((SUBJECTS.heartbeats, SUBJECTS.routers))
                self.bus.publish(kind(name), self._heartbeat(name))
        self.sim.at(EVERY_S, self._act)

    def _record(self) -> bytes:
        rng = self._rng
        if rng.random() < 0.3:
            return rng.choice(JUNK)
        # Of roots alone: a store behind what is not held is an orphan, which the plane forbids.
        events: list[object] = [
            rng.choice(([2], [0, 0, rng.choice(RUNS), rng.choice((0, 1, 9, 300, -1))]))
            for _ in range(rng.randrange(4))
        ]
        return msgspec.msgpack.encode([1, rng.choice(NUMBERS), rng.choice(NUMBERS), events])

    def _resync(self, worker: str) -> bytes:
        rng = self._rng
        asked: dict[str, object] = {"type": "resync", "worker": worker, "router": rng.choice(TEXTS)}
        # Not to the very epoch that it forges: whose events are w0's nobody could tell by numbers.
        epochs = [one for one in NUMBERS if one != 2**62 - 1]
        asked |= {"epoch": rng.choice(epochs), "next_seq": rng.choice(NUMBERS)}
        return rng.choice(JUNK) if rng.random() < 0.2 else msgspec.msgpack.encode(asked)

    def _heartbeat(self, name: str) -> bytes:
        rng = self._rng
        said: dict[str, object] = {"worker": name, "router": name, "bucket": "code", "epoch": 1}
        said |= {"last_seq": 0, "url": f"http://{name}:1", "models": (), "block_size": 2}
        said |= {"ready": False, "events": False}
        fields = (*said, "applied_sequence", "digest", "scope", "load", "secret_mark", "reading")
        for field in rng.sample(fields, rng.randrange(3)):
            said[field] = rng.choice(VALUES)
        return msgspec.msgpack.encode(said)
