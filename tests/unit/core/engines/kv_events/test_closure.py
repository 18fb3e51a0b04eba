from kvmesh.core.blocks.events import ROOT, Removed, Stored
from kvmesh.core.blocks.hashing import pack_hashes, unpack_hashes
from kvmesh.core.engines.kv_events.closure import MAX_RUN, Closure


def stored(parent: int, *hashes: int, tier: int = 0) -> Stored:
    return Stored(parent, pack_hashes(hashes), tier)


def removed(*hashes: int, tier: int = 0) -> Removed:
    return Removed(pack_hashes(hashes), tier)


def test_a_run_is_announced_as_one_event_of_the_closures_tier() -> None:
    assert Closure(tier=1).hold(ROOT, [1, 2, 3]) == [stored(ROOT, 1, 2, 3, tier=1)]


def test_holding_a_block_again_says_nothing() -> None:
    closure = Closure()
    closure.hold(ROOT, [1, 2])

    assert closure.hold(ROOT, [1, 2]) == []


def test_an_evicted_inner_block_takes_its_descendants_along_deepest_first() -> None:
    closure = Closure()
    closure.hold(ROOT, [1, 2, 3])

    assert closure.drop([1]) == [removed(3, 2, 1)]
    assert len(closure) == 0


def test_the_return_of_an_inner_block_announces_its_descendants_again() -> None:
    closure = Closure()
    closure.hold(ROOT, [1, 2, 3])
    closure.drop([1])

    assert closure.hold(ROOT, [1]) == [stored(ROOT, 1, 2, 3)]


def test_a_descendant_evicted_while_hidden_stays_away() -> None:
    closure = Closure()
    closure.hold(ROOT, [1, 2, 3])
    closure.drop([1])

    assert closure.drop([2]) == []
    assert closure.hold(ROOT, [1]) == [stored(ROOT, 1)]
    assert closure.hold(1, [2]) == [stored(1, 2, 3)]


def test_branches_are_announced_as_runs_under_their_parents() -> None:
    closure = Closure()
    closure.hold(ROOT, [1, 2])
    closure.hold(1, [3])
    closure.hold(1, [4])

    assert {(one.parent, one.hashes) for one in closure.dump()} == {
        (one.parent, one.hashes) for one in (stored(ROOT, 1, 4), stored(1, 3), stored(1, 2))
    }


def test_an_orphan_waits_until_its_parent_comes() -> None:
    closure = Closure()

    assert closure.hold(7, [8]) == []
    assert closure.hold(ROOT, [7]) == [stored(ROOT, 7, 8)]


def test_dropping_the_unknown_says_nothing() -> None:
    assert Closure().drop([5]) == []


def test_the_oldest_hidden_blocks_are_forgotten_when_there_are_too_many() -> None:
    closure = Closure(max_hidden=2)
    for orphan in (10, 20, 30):
        closure.hold(orphan - 1, [orphan])

    assert closure.statistics().forgotten == 1
    assert closure.hold(ROOT, [9]) == [stored(ROOT, 9)]
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


def test_children_of_one_parent_may_come_and_go_in_any_number() -> None:
    closure = Closure()
    closure.hold(ROOT, [1])
    for child in (2, 3, 4):
        closure.hold(1, [child])
    for child in (2, 3, 4):
        assert closure.drop([child]) == [removed(child)]

    assert closure.dump() == [stored(ROOT, 1)]


def test_removals_carry_the_closures_tier_too() -> None:
    closure = Closure(tier=2)
    closure.hold(ROOT, [1])

    assert [one.tier for one in closure.drop([1])] == [2]


def test_as_many_hidden_blocks_as_allowed_are_kept() -> None:
    closure = Closure(max_hidden=2)
    closure.hold(9, [10])
    closure.hold(19, [20])

    assert closure.statistics().forgotten == 0
    closure.drop([20])
    closure.hold(29, [30])
    assert closure.statistics().hidden == 2


def test_every_branch_goes_with_its_trunk_however_deep() -> None:
    closure = Closure()
    closure.hold(ROOT, [1, 2, 3, 4])
    closure.hold(1, [5, 6, 7])
    closure.hold(1, [8])

    [event] = closure.drop([99, 1])

    assert sorted(unpack_hashes(event.hashes)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(closure) == 0


def test_a_forgotten_child_does_not_come_back_with_its_parent() -> None:
    closure = Closure(max_hidden=2)
    for child in (1, 2, 3):
        closure.hold(99, [child])
    assert closure.statistics().forgotten == 1

    events = closure.hold(ROOT, [99])

    assert sorted(block for one in events for block in unpack_hashes(one.hashes)) == [2, 3, 99]
