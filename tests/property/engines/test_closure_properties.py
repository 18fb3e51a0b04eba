"""The closure against a set: what it says is visible, and that readers may trust each event."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import ROOT, Removed, Stored
from kvmesh.core.blocks.hashing import unpack_hashes
from kvmesh.core.engines.kv_events.closure import Closure

NODES = 14

trees = st.lists(st.integers(0, NODES - 1), min_size=NODES, max_size=NODES).map(
    lambda picks: {node: pick % node for node, pick in enumerate(picks, start=1)}
)
steps = st.lists(
    st.tuples(st.sampled_from(["hold", "drop", "clear"]), st.lists(st.integers(1, NODES))),
    max_size=40,
)


class Reader:
    """Takes events as an index does, and refuses what breaks their contract."""

    def __init__(self) -> None:
        self.parents: dict[int, int] = {}

    def take(self, events: Iterable[Stored | Removed]) -> None:
        for event in events:
            hashes = unpack_hashes(event.hashes)
            if isinstance(event, Stored):
                parent = event.parent
                assert parent == ROOT or parent in self.parents
                for block in hashes:
                    assert block not in self.parents
                    self.parents[block] = parent
                    parent = block
            else:
                for block in hashes:
                    del self.parents[block]
                assert not set(hashes) & set(self.parents.values())


def greatest_closed_subset(held: set[int], tree: dict[int, int]) -> set[int]:
    visible: set[int] = set()
    for node in sorted(held):
        if tree[node] == ROOT or tree[node] in visible:
            visible.add(node)
    return visible


def path_to(node: int, tree: dict[int, int], length: int) -> list[int]:
    path = [node]
    while len(path) < length and tree[path[0]] != ROOT:
        path.insert(0, tree[path[0]])
    return path


@given(trees, steps)
def test_output_is_always_the_greatest_closed_subset_of_what_is_held(
    tree: dict[int, int], plan: list[tuple[str, list[int]]]
) -> None:
    closure, reader, held = Closure(), Reader(), set[int]()

    for kind, nodes in plan:
        if kind == "hold":
            for node in nodes:
                run = path_to(node, tree, length=1 + node % 3)
                held.update(run)
                reader.take(closure.hold(tree[run[0]], run))
        elif kind == "drop":
            held.difference_update(nodes)
            reader.take(closure.drop(nodes))
        else:
            held.clear()
            closure.clear()
            reader.parents.clear()

        expected = greatest_closed_subset(held, tree)
        assert set(reader.parents) == expected
        assert all(tree[block] == parent for block, parent in reader.parents.items())
        assert len(closure) == len(expected)
        assert closure.statistics().held == len(held)

        dumped = Reader()
        dumped.take(closure.dump())
        assert dumped.parents == reader.parents


@given(trees, steps, st.integers(0, 3))
def test_with_little_room_output_is_closed_and_never_more_than_what_is_held(
    tree: dict[int, int], plan: list[tuple[str, list[int]]], room: int
) -> None:
    closure, reader, held = Closure(max_hidden=room), Reader(), set[int]()

    for kind, nodes in plan:
        for node in nodes:
            if kind == "drop":
                held.discard(node)
                reader.take(closure.drop([node]))
            else:
                held.add(node)
                reader.take(closure.hold(tree[node], [node]))
            assert set(reader.parents) <= greatest_closed_subset(held, tree)
            assert closure.statistics().hidden <= room
