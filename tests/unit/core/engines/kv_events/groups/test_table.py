from kvmesh.core.blocks.events import ENDS, ROOT, Removed, Stored
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.engines.engine_events import EngineStored
from kvmesh.core.engines.kv_events.groups.kinds import Group, Groups
from kvmesh.core.engines.kv_events.groups.table import Blocks, GroupTable, Path, Place


def groups_of(*kinds: str) -> tuple[Groups, list[Group]]:
    groups = Groups(None, drops=False)
    events = [
        EngineStored((1,), None, bytes(64), 16, group=index, kind=kind, window=17)
        for index, kind in enumerate(kinds)
    ]
    groups.learn(events)
    return groups, list(groups.all())


def path(*keys: int, before: int | None = None) -> Path:
    return Path(before, 7, keys, keys)


def test_a_hash_names_its_first_prefix_as_long_as_any_group_holds_it() -> None:
    groups, (full, state) = groups_of("full_attention", "mamba")
    table = GroupTable(groups)

    assert table.store(Blocks(full, 0, (11, 12), (1, 2)), path(1, 2)) == 0
    assert table.store(Blocks(state, 0, (12,), (1,))) == 0
    assert table.find(12) == Place(2, 2, 7, 2)
    assert table.remove(full, 0, (12, 12, 99)) == 2
    assert (table.find(12), table.blocks, table.boundaries) == (Place(2, 2, 7, 2), 2, 2)
    assert table.remove(state, 0, (12,)) == 0
    assert (table.find(12), table.boundaries) == (None, 1)


def test_boundaries_that_nothing_ends_at_are_not_kept() -> None:
    groups, (full,) = groups_of("full_attention")
    table = GroupTable(groups)

    table.store(Blocks(full, 0, (11, 13), (1, None)), path(1, 2, 3))

    assert table.boundaries == 1
    assert table.settle() == [Stored(ROOT, pack_hashes((1,)))]


def test_a_tier_begins_with_all_that_nearer_ones_hold() -> None:
    groups, (full, state) = groups_of("full_attention", "mamba")
    table = GroupTable(groups)
    table.store(Blocks(full, 0, (11,), (1,)), path(1))
    table.store(Blocks(state, 0, (11,), (1,)))
    table.settle()
    table.take_ends()

    table.open(2)
    table.open(1)
    table.open(1)

    chains = [Stored(ROOT, pack_hashes((1,)), tier) for tier in (2, 1)]
    assert table.settle() == chains
    assert table.take_ends() == ([], [Stored(ROOT, pack_hashes((1,)), ENDS + t) for t in (1, 2)])
    table.store(Blocks(full, 1, (11,), (1,), times=3))
    assert table.remove(full, 0, (11,)) == 0
    assert table.settle() == [Removed(pack_hashes((1,)))]
    assert table.remove(full, 1, (11,) * 4) == 1
    assert table.settle() == [Removed(pack_hashes((1,)), tier) for tier in (1, 2)]
    assert [len(table.closures()), table.visible()] == [3, 0]
    table.clear()
    assert (len(table.closures()), table.blocks) == (1, 0)


def test_a_rule_that_changed_is_worked_out_over_what_is_held() -> None:
    groups, (full,) = groups_of("full_attention")
    table = GroupTable(groups)
    table.store(Blocks(full, 0, (11, 12), (1, 2)), path(1, 2))
    table.settle()
    groups.learn([EngineStored((1,), None, bytes(64), 16, group=1, kind="mamba")])

    table.settle_rule()

    assert table.dump() == [Stored(ROOT, pack_hashes((1, 2)))]
