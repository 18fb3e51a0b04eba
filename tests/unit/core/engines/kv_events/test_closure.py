from kvmesh.core.blocks.events import ROOT, Removed, Stored
from kvmesh.core.blocks.hashing import pack_hashes, unpack_hashes
from kvmesh.core.engines.kv_events.closure import MAX_RUN, Closure


def stored(parent: int, *hashes: int, tier: int = 0) -> Stored:
    return Stored(parent, pack_hashes(hashes), tier)


def removed(*hashes: int, tier: int = 0) -> Removed:
    return Removed(pack_hashes(hashes), tier)


def test_the_oldest_hidden_blocks_are_forgotten_when_there_are_too_many() -> None:
    closure = Closure(max_hidden=2)
    for orphan in (10, 20, 30):
        closure.hold(orphan - 1, [orphan])

    assert (closure.statistics().forgotten, closure.hold(ROOT, [9])) == (1, [stored(ROOT, 9)])
    assert closure.hold(ROOT, [19]) == [stored(ROOT, 19, 20)]
    closure.hold(39, [40])
    closure.hold(49, [50])
    assert closure.statistics().forgotten == 2


def test_an_eviction_that_hides_too_much_forgets_the_rest() -> None:
    closure = Closure(max_hidden=1)
    closure.hold(ROOT, [1, 2, 3, 4])

    assert closure.drop([1]) == [removed(4, 3, 2, 1)]
    assert closure.statistics().held == closure.statistics().hidden == 1


def test_long_runs_and_removals_are_cut_to_what_fits_a_message() -> None:
    closure = Closure()
    blocks = list(range(1, MAX_RUN + 3))

    runs = closure.hold(ROOT, blocks)

    assert [one.parent for one in runs] == [ROOT, MAX_RUN]
    assert [len(one.hashes) for one in closure.drop([1])] == [8 * MAX_RUN, 16]


def test_as_many_hidden_blocks_as_allowed_are_kept() -> None:
    closure = Closure(max_hidden=2)
    closure.hold(9, [10])
    closure.hold(19, [20])

    assert closure.statistics().forgotten == 0
    closure.drop([20])
    closure.hold(29, [30])
    assert closure.statistics().hidden == 2


def test_a_forgotten_child_does_not_come_back_with_its_parent() -> None:
    closure = Closure(max_hidden=2)
    for child in (1, 2, 3):
        closure.hold(99, [child])
    assert closure.statistics().forgotten == 1

    events = closure.hold(ROOT, [99])

    assert sorted(block for one in events for block in unpack_hashes(one.hashes)) == [2, 3, 99]


def test_holding_a_block_again_says_nothing() -> None:
    closure = Closure()
    closure.hold(ROOT, [1, 2])

    assert closure.hold(ROOT, [1, 2]) == []
