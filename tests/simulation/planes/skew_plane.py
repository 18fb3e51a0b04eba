"""A bucket of which some processes are of the next version: what may never happen meanwhile."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

from kvmesh.actors.indexer import Indexer
from kvmesh.actors.kernel import Effect, Publish
from kvmesh.actors.registry import Registry
from kvmesh.actors.snapshotter import Snapshotter
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.index.snapshot_manifest import SnapshotGeneration
from kvmesh.formats import FormatRange, Formats
from tests.doubles.sim.driver import Process
from tests.doubles.sim.faults import SimFaults
from tests.simulation.planes.snapshot_plane import SnapshotPlane

BOTH = FormatRange(1, 2)
"""What a build reads that has a format 2, which is format 1 by another number."""

OLD, NEW = Formats(), Formats(BOTH, BOTH, BOTH, BOTH)


class SkewPlane(SnapshotPlane):
    """Processes begin as the old version; `update` starts one anew as another.

    Checked at each new manifest: its newest generation knows every worker that published before
    its position. `resyncs` counts what replicas asked for, `unanswered` the moments at which no
    live replica took requests.
    """

    def __init__(self, seed: int, plan: SimFaults, *, workers: int = 2, replicas: int = 2) -> None:
        self.versions: dict[str, Formats] = {}
        self.published: dict[tuple[str, WorkerId], int] = {}
        self.resyncs: Counter[str] = Counter()
        self.unanswered = 0
        super().__init__(seed, plan, workers=workers, replicas=replicas)
        self.journal.on_stored.append(self._note_published)
        self.sim.on_decided.append(self._count_resyncs)

    def version_of(self, process: str) -> str:
        return "2" if self.formats_of(process) is NEW else "1"

    def formats_of(self, process: str) -> Formats:
        return self.versions.get(process, OLD)

    def is_ready(self, router: str, indexer: Indexer) -> bool:
        registry = self.sim.processes[router].actors.get("registry")
        if not isinstance(registry, Registry) or not indexer.caught_up:
            return False
        peers = map(registry.replica, registry.routers.members())
        ready = [one.formats for one in peers if one is not None and one.ready]
        now = self.sim.now
        return not (indexer.awaits(now) or indexer.formats.why_not(now, ready))

    def update(self, name: str, formats: Formats) -> None:
        """Stop a process and start it as that version."""
        self.versions[name] = formats
        process = self.sim.processes[name]
        self.sim.kill(process)
        self.sim.start(process)

    def roll(self, names: Sequence[str], formats: Formats) -> None:
        """Update processes one by one; each goes on when the one before serves again."""
        for name in names:
            self.update(name, formats)
            if name in self.routers:
                back = self.sim.run_until(partial(self.serves, name), limit_s=30.0)
                assert back, f"{name} does not come back: {self.differences()}"
            else:
                self.sim.run(self.sim.now + 0.5)

    def serves(self, router: str) -> bool:
        """Whether a replica takes requests now."""
        return self.is_ready(router, self.indexer(router))

    def warns(self, router: str) -> bool:
        """Whether a replica says that it writes no snapshots."""
        snapshotter = self.sim.processes[router].actors["snapshotter"]
        assert isinstance(snapshotter, Snapshotter)
        return any("no snapshots are written" in line for line in snapshotter.warnings())

    def ask_for(self, seconds: float, every_s: float = 0.05) -> None:
        """Send a request each `every_s` from now on, for so long."""
        for number in range(int(seconds / every_s)):
            self.sim.at(number * every_s, self._ask)

    def formats_written(self) -> tuple[set[int], int, int]:
        """Return what workers write now, and the formats of the newest snapshot and manifest."""
        manifest = self.manifest()
        journal = {self.publisher(one).heartbeat().journal_format for one in self.engines}
        return journal, manifest.generations[0].encoding, manifest.schema

    def _ask(self) -> None:
        alive = [one for one in self.routers if self.sim.processes[one].alive]
        if not any(self.is_ready(one, self.indexer(one)) for one in alive):
            self.unanswered += 1

    def _note_published(self, sequence: int, subject: str, data: bytes) -> None:
        del data
        worker = WorkerId(subject.rpartition(".")[2])
        self.published.setdefault((self.journal.created, worker), sequence)

    def _count_resyncs(self, process: Process, actor: str, effect: Effect) -> None:
        del actor
        if isinstance(effect, Publish) and ".ctl." in effect.subject and b"resync" in effect.data:
            self.resyncs[process.name] += 1

    def _check_snapshot(self, one: SnapshotGeneration) -> None:
        super()._check_snapshot(one)
        snapshot = self._read(one)
        known = {record.worker for record in snapshot.records} if snapshot is not None else None
        for (created, worker), sequence in self.published.items():
            if known is not None and created == one.created and sequence <= one.sequence:
                assert worker in known, f"a snapshot without {worker}"
