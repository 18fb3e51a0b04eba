"""What the compiled table does with what nobody should hand it; the Python one is told the same in
tests/property/engines/test_grouped_cache_properties.py.
"""

from typing import Any

import pytest

from kvmesh._native import GroupTable
from kvmesh.core.blocks.events import ENDS, ROOT, Removed, Stored
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.engines.engine_events import EngineStored
from kvmesh.core.engines.kv_events.compiled_groups import CompiledGroupTable
from kvmesh.core.engines.kv_events.group_kinds import Groups
from kvmesh.core.engines.kv_events.group_table import Blocks, Path, Place

KEYS = Path(None, 7, (1, 2), (1, 2))


def native(**more: Any) -> Any:
    table: Any = GroupTable(more.get("stored", Stored), Removed, 99, 9, 9, 9)
    table.settle_rule(((0, 1, 1),), 1, 0)
    return table


def test_a_table_counts_finds_and_forgets() -> None:
    groups = Groups(None, drops=False)
    groups.learn([EngineStored((1,), None, bytes(64), 16)])
    table = CompiledGroupTable(groups)
    [full] = groups.all()

    assert table.store(Blocks(full, 0, (11, 12), (1, 2)), KEYS) == 0
    assert table.settle() == [Stored(ROOT, pack_hashes((1, 2)))]
    assert table.take_ends() == ([], [Stored(ROOT, pack_hashes((1, 2)), ENDS)])
    assert table.find(12) == Place(2, 2, 7, 2)
    table.open(1)
    assert table.settle() == [Stored(ROOT, pack_hashes((1, 2)), 1)]
    assert (table.blocks, table.boundaries, table.count(full), table.visible()) == (2, 2, 2, 2)
    assert (table.remove(full, 0, (12, 12)), len(table.closures())) == (1, 2)
    table.clear()
    assert (table.find(11), table.dump(), table.blocks) == (None, [], 0)


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("find", ("x",), TypeError),
        ("find", (-1,), OverflowError),
        ("find", (2**64,), OverflowError),
        ("store", (), TypeError),
        ("store", (1, 0, 0, 1, (1,), (1,), None, 0, (1,)), IndexError),
        ("store", (-1, 0, 0, 1, (1,), (1,), None, 0, (1,)), IndexError),
        ("store", (0, 0, 0, 1, (1,), (), None, 0, (1,)), ValueError),
        ("store", (0, 0, 0, 1, ("x",), (1,), None, 0, (1,)), TypeError),
        ("store", (0, 0, 0, 1, (1,), (2**64,), None, 0, (1,)), OverflowError),
        ("store", (0, 0, 0, 1, 7, (1,), None, 0, (1,)), TypeError),
        ("store", (0, 0, 0, 1, (1,), (1,), 2**70, 0, (1,)), OverflowError),
        ("remove", (0, 0, None), TypeError),
        ("remove", (9, 0, ()), IndexError),
        ("open", (-1,), ValueError),
        ("open", (256,), ValueError),
        ("open", (None,), TypeError),
        ("settle_rule", ((), 1, 0), ValueError),
        ("settle_rule", (((0, 1, 1),), 0, 0), ValueError),
    ],
)
def test_what_it_is_not_made_for_is_refused_and_changes_nothing(
    name: str, arguments: tuple[object, ...], error: type[Exception]
) -> None:
    table = native()
    table.store(0, 0, 0, 1, (11,), (1,), None, 0, (1,))

    with pytest.raises(error):
        getattr(table, name)(*arguments)

    assert table.find(11) == (1, 0, 1)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("store", (0, 5, 0, 1, (12,), (2,), None, 0, (2,))),
        ("store", (0, 0, 0, 1, (12,), (3,), None, 0, (2,))),
        ("settle_rule", (((7, 1, 1),), 1, 0)),
        ("settle_rule", (((0, 0, 1),), 1, 0)),
        ("settle_rule", ((None,), 1, 0)),
    ],
)
def test_a_change_that_breaks_off_leaves_nothing_to_rely_on_until_it_is_cleared(
    name: str, arguments: tuple[object, ...]
) -> None:
    table = native()
    table.store(0, 0, 0, 1, (11,), (1,), None, 0, (1,))

    with pytest.raises((ValueError, TypeError)):
        getattr(table, name)(*arguments)
    with pytest.raises(MemoryError, match="unknown since"):
        table.settle()

    table.clear()
    table.settle_rule(((0, 1, 1),), 1, 0)
    assert (table.store(0, 0, 0, 1, (11,), (1,), None, 0, (1,)), len(table.settle())) == (0, 1)


def test_an_event_type_that_calls_back_is_refused() -> None:
    def stored(*_: object) -> object:
        with pytest.raises(RuntimeError, match="while it changes"):
            table.clear()
        return Stored(ROOT, b"")

    table = native(stored=stored)
    table.store(0, 0, 0, 1, (11,), (1,), None, 0, (1,))

    assert table.settle() == [Stored(ROOT, b"")]
    for tier in range(1, 8):
        table.open(tier)
    with pytest.raises(ValueError, match="at most 8 tiers"):
        table.open(9)
