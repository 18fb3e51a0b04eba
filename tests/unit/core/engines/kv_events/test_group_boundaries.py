from kvmesh.core.blocks.events import ROOT
from kvmesh.core.engines.kv_events.group_boundaries import Boundaries, Boundary


def tree(*steps: tuple[int, int]) -> Boundaries:
    """Return a tree of (parent, key)."""
    made = Boundaries()
    for parent, key in steps:
        made.add(key, key, 0, made.get(parent), 1)
    return made


def at(boundaries: Boundaries, key: int) -> Boundary:
    found = boundaries.get(key)
    assert found is not None
    return found


def keys(found: list[Boundary]) -> list[int]:
    return [one.key for one in found]


def test_boundaries_are_found_before_and_behind_one() -> None:
    made = tree((ROOT, 1), (1, 2), (2, 3), (2, 4), (2, 5), (ROOT, 6))

    assert at(made, 3).depth == 3
    assert made.above(at(made, 3), 2) is at(made, 1)
    assert made.above(at(made, 3), 3) is None
    assert (sorted(keys(made.below(at(made, 1), 2))), made.below(at(made, 1), 4)) == ([3, 4, 5], [])
    assert (keys(made.below(at(made, 6), 0)), keys(made.covered(at(made, 3), 2))) == ([6], [2, 3])
    assert (keys(made.covered(at(made, 2), 9)), keys(list(made))) == ([1, 2], [1, 2, 3, 4, 5, 6])
