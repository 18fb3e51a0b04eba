from kvmesh.core.blocks.events import ENDS, ROOT, Removed, Stored
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.engines.engine_events import EngineStored
from kvmesh.core.engines.kv_events.group_boundaries import Boundaries, Boundary
from kvmesh.core.engines.kv_events.group_hits import TierHits
from kvmesh.core.engines.kv_events.group_kinds import Groups

FULL, WINDOW = 0, 1


class Fixture:
    """Blocks 1 -> 2 -> 3 of a full group and of a window of so many tokens, or of states."""

    def __init__(self, window: int = 17, *, states: bool = False) -> None:
        self.groups = Groups(None, drops=states)
        full = EngineStored((1,), None, bytes(64), 16, kind="full_attention")
        kind = "mamba" if states else "sliding_window"
        other = EngineStored((1,), None, bytes(64), 16, 0, 1, kind, window=window)
        self.groups.learn([full, other])
        self.tree = Boundaries()
        above: Boundary | None = None
        for key in (1, 2, 3):
            above = self.tree.add(key, key, 0, above, 2)
        self.hits = TierHits(0, self.tree, self.groups, max_hidden=9)

    def hold(self, group: int, *keys: int, count: int = 1) -> None:
        for key in keys:
            boundary, found = self.tree.get(key), self.groups.get(group)
            assert boundary is not None
            assert found is not None
            boundary.held[found.slot] += count
            (self.hits.add if count > 0 else self.hits.remove)(found, boundary)


def ends(*keys: int) -> Stored:
    return Stored(ROOT, pack_hashes(keys), ENDS)


def test_a_block_is_an_end_while_all_groups_hold_what_a_hit_needs() -> None:
    on = Fixture()

    on.hold(FULL, 1, 2, 3)
    assert on.hits.settle() == [Stored(ROOT, pack_hashes((1, 2, 3)))]
    assert on.hits.take_ends() == ([], [])
    on.hold(WINDOW, 1, 3)
    assert on.hits.take_ends() == ([], [ends(1, 3)])
    assert on.hits.dump() == [Stored(ROOT, pack_hashes((1, 2, 3))), ends(1, 3)]
    on.hold(FULL, 2, count=-1)
    assert on.hits.settle() == [Removed(pack_hashes((3, 2)))]
    assert on.hits.take_ends() == ([Removed(pack_hashes((3,)), ENDS)], [])
    assert (len(on.hits), on.hits.statistics().hidden) == (1, 1)


def test_a_hit_that_drops_a_block_ends_behind_the_state_that_it_needs() -> None:
    on = Fixture(states=True)
    on.hold(FULL, 1, 2, 3)
    on.hold(WINDOW, 1)
    on.hits.settle()
    assert on.hits.take_ends() == ([], [ends(2)])

    on.hold(WINDOW, 1, count=-1)
    on.hits.settle()

    assert on.hits.take_ends() == ([Removed(pack_hashes((2,)), ENDS)], [])
