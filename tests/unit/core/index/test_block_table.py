from kvmesh._native import Table
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.index.slots import Slots, clear_released

A, B = WorkerId("a"), WorkerId("b")


def table_of(count: int) -> tuple[Table, Slots]:
    table, slots = Table(), Slots()
    for worker in (A, B):
        table.store(table.admit(worker, slots.assign(worker)), pack_hashes(range(count)))
    return table, slots


def test_a_worker_has_one_holding() -> None:
    table, slots = table_of(1000)

    assert table.admit(A, slots.assign(A)) is table.holdings[A]
    assert table.holdings[A].bit == 1


def test_a_frozen_table_stays_as_it_was_whatever_changes_before_it_is_read() -> None:
    table, slots = table_of(2560)
    frozen = table.freeze()
    assert frozen.take(0) == dict.fromkeys(range(10), 3)

    table.store(table.holdings[A], pack_hashes([2560, 2561, 2562]))
    table.remove(table.holdings[A], pack_hashes([0, 1, 2]))
    table.move(pack_hashes([3]), 3, Table())
    Table().move(pack_hashes([4]), 4, table)
    slots.release(B)
    list(clear_released(slots, [table]))

    for number in range(1, 256):
        assert frozen.take(number) == dict.fromkeys(range(10), 3)
    frozen.close()
    table.store(table.holdings[A], pack_hashes([0]))
    assert table.mask(0) == 1
