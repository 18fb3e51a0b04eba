import io

import pytest
from rich.console import Console

from kvmesh.app.ops.snapshot import NARROWEST, in_words, shelf_table
from kvmesh.core.index.snapshot_manifest import Manifest, SnapshotGeneration
from kvmesh.ports import ObjectInfo

NAME = "idx-20261121T233434555018654Z-{}-2-0"


def generation(sequence: int) -> SnapshotGeneration:
    return SnapshotGeneration(NAME.format(sequence), "c", sequence, 5_123_456, "sha", 2, 573_000)


def test_names_are_whole_and_ages_stand_beside_them() -> None:
    manifest = Manifest((generation(81_004), generation(61_004)))
    stored = [
        ObjectInfo(NAME.format(81_004), 5_123_456, "sha", 1_000.0),
        ObjectInfo(NAME.format(7), 12, "sha", 400.0),
    ]
    out = io.StringIO()

    Console(file=out, width=NARROWEST).print(shelf_table("chat", manifest, stored, 1_060.0))

    lines = [line.split() for line in out.getvalue().splitlines() if "idx-" in line]
    name = NAME.format(81_004)
    assert lines[0] == [name, "81004", "573,000", "5,123,456", "60", "s", "newest"]
    assert lines[1][4:] == ["lost", "1", "older"]
    assert lines[2] == [NAME.format(7), "12", "11", "min", "not", "kept"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-1.0, "0 s"), (89.0, "89 s"), (90.0, "2 min"), (7200.0, "2 h"), (200_000.0, "2 d")],
)
def test_ages_are_told_as_people_do(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
