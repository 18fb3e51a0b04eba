"""The lowest format that replicas told lately is written."""

from kvmesh.core.journal.told_formats import KEEP_S, MOST, ToldFormats


def test_the_lowest_told_lately_counts() -> None:
    told = ToldFormats(1, 3)

    first = told.take("r1", 3, 0.0), told.take("r2", 2, 1.0), told.take("r1", 3, 2.0)
    later = told.take("r1", 3, 1.0 + KEEP_S)

    assert first == (3, 2, 2)
    assert later == 3


def test_a_replica_may_change_its_mind() -> None:
    told = ToldFormats(1, 2)
    told.take("r1", 1, 0.0)

    assert told.take("r1", 2, 1.0) == 2


def test_what_the_worker_cannot_write_is_brought_into_its_range() -> None:
    assert ToldFormats(2, 3).take("r1", 1, 0.0) == 2
    assert ToldFormats(2, 3).take("r1", 9, 0.0) == 3


def test_names_in_commands_cannot_fill_the_memory() -> None:
    told = ToldFormats(1, 2)
    told.take("first", 1, 0.0)

    chosen = [told.take(f"r{number}", 2, 1.0) for number in range(MOST)]

    assert chosen[-2:] == [1, 2]
