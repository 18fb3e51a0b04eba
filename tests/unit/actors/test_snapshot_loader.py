"""Loading where the newest snapshot is a newer version's: who wrote it may write one to be read."""

from kvmesh.actors.kernel import Wake
from kvmesh.actors.messages import Started, Tick
from kvmesh.actors.snapshot_loader import LOOK_S, OLDER_S, SnapshotLoader
from kvmesh.actors.storage import FetchObject, KeyRead, OpenTail, ReadKey
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.snapshot_manifest import Manifest, SnapshotGeneration, encode_manifest
from kvmesh.core.journal.replica import IndexReplica
from kvmesh.formats import FIRST
from tests.unit.actors.effects import of

NEWER_MANIFEST = b'{"schema":2,"generations":[]}'


def of_format(number: int) -> bytes:
    generation = SnapshotGeneration("idx", "today", 9, 100, "00", 1, encoding=number)
    return encode_manifest(Manifest((generation,)))


def begun() -> tuple[SnapshotLoader, ReadKey]:
    loader = SnapshotLoader(IndexReplica(KvIndex()), "manifest.b", formats=FIRST)
    (read,) = of(ReadKey, loader.receive(Started(), 0.0))
    return loader, read


def read_at(loader: SnapshotLoader, now: float) -> ReadKey:
    (read,) = of(ReadKey, loader.receive(Tick("manifest"), now))
    return read


def test_an_older_snapshot_is_waited_for_and_loaded_when_it_comes() -> None:
    for newer in (NEWER_MANIFEST, of_format(2)):
        loader, read = begun()

        waits = list(loader.receive(KeyRead(read.token, newer, 1), 0.0))
        again = read_at(loader, LOOK_S)
        loads = list(loader.receive(KeyRead(again.token, of_format(1), 2), LOOK_S))

        assert waits == [Wake(LOOK_S, Tick("manifest"))]
        assert [one.name for one in of(FetchObject, loads)] == ["idx"]
        assert (loader.newer, loader.loading, loader.statistics().rejected) == (None, True, 0)


def test_without_one_in_time_the_journal_is_read() -> None:
    for newer, kind in ((NEWER_MANIFEST, "manifest"), (of_format(2), "snapshot")):
        loader, read = begun()
        list(loader.receive(KeyRead(read.token, newer, 1), 0.0))

        late = read_at(loader, OLDER_S)
        replays = list(loader.receive(KeyRead(late.token, newer, 1), OLDER_S))

        assert of(OpenTail, replays) == [OpenTail(0, "")]
        assert loader.newer is not None
        assert (loader.newer.kind, loader.newer.number) == (kind, 2)
        assert loader.statistics().rejected == 1
