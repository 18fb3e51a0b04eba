from kvmesh.core.engines.engine_events import EngineStored
from kvmesh.core.engines.kv_events.group_kinds import Group, Groups
from kvmesh.core.engines.kv_events.group_table import Blocks, GroupTable, Path, Place


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
    assert (table.store(Blocks(state, 0, (12,), (1,))), table.find(12)) == (0, Place(2, 2, 7, 2))
    assert table.remove(full, 0, (12, 12, 99)) == 2
    assert (table.find(12), table.blocks, table.boundaries) == (Place(2, 2, 7, 2), 2, 2)
    assert (table.remove(state, 0, (12,)), table.find(12), table.boundaries) == (0, None, 1)
