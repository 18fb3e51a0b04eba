import pytest

from kvmesh._native import Table
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.index.block_table import IndexView

NAMES = [WorkerId(f"w{number}") for number in range(130)]


def asked(*blocks: int) -> BlockHashes:
    return BlockHashes.of(blocks, 1)


def view_of(held: dict[int, list[int]], live: int = -1) -> IndexView:
    """Return a view of what the workers of some slots hold."""
    table = Table()
    for slot, blocks in held.items():
        table.store(table.admit(NAMES[slot], 1 << slot), pack_hashes(blocks))
    every = sum(1 << slot for slot in held)
    return table.view(None, NAMES, every & live)


def test_only_live_slots_count() -> None:
    view = view_of({0: [1, 2], 70: [1, 2], 129: [1]}, live=~(1 << 70))

    assert (view.live, view.names) == (1 | 1 << 129, tuple(NAMES))
    assert view.old is None
    assert view.find_groups(asked(1, 2)) == [(2, (NAMES[0],)), (1, (NAMES[129],))]
    assert [(slot, size) for slot, size in enumerate(view.sizes()) if size] == [(0, 2), (129, 1)]


def test_a_view_sees_what_its_tables_hold_now() -> None:
    young, old = Table(), Table()
    holding = young.admit(NAMES[0], 1)
    old.store(old.admit(NAMES[0], 1), pack_hashes([1, 2]))
    old.store(old.admit(NAMES[1], 2), pack_hashes([1]))
    view = young.view(old, NAMES[:2], 3)
    assert view.find_matches(asked(1, 2, 3)) == {NAMES[0]: 2, NAMES[1]: 1}

    young.store(holding, pack_hashes([3]))

    assert (view.find_matches(asked(1, 2, 3)), view.sizes()) == ({NAMES[0]: 3, NAMES[1]: 1}, [3, 1])
    assert (view.young, view.old) == (young, old)


def test_a_live_slot_without_a_worker_is_refused() -> None:
    with pytest.raises(ValueError, match="slot 2 is live, but only 2 have names"):
        Table().view(None, NAMES[:2], 5)
