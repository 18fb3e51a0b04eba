from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import pack_hashes, sequence_hashes
from kvmesh.core.index.slots import Slots
from kvmesh.core.index.table import BlockTable, clear_released

A, B = WorkerId("a"), WorkerId("b")


def table_of(count: int) -> tuple[BlockTable, Slots]:
    table, slots = BlockTable(), Slots()
    for worker in (A, B):
        table.store(table.admit(worker, slots.assign(worker)), pack_hashes(range(count)))
    return table, slots


def test_equal_masks_are_one_object() -> None:
    table, slots = table_of(1000)

    masks = {id(mask) for shard in table.shards for mask in shard.values()}

    assert len(masks) == 1
    assert table.admit(A, slots.bits[A]) is table.holdings[A]


def test_the_pool_of_masks_is_emptied_before_it_grows_without_end() -> None:
    table = BlockTable()

    first = table.pooled(1 << 70)
    for number in range(1 << 16):
        table.pooled(number << 80)

    assert table.pooled(1 << 70) == first
    assert table.pooled(1 << 70) is table.pooled(1 << 70)


def test_no_dict_grows_in_a_step_worth_noticing() -> None:
    table, slots = BlockTable(), Slots()
    holding = table.admit(A, slots.assign(A))
    hashes = sequence_hashes(bytes(4 * 100_000), 1)

    steps = 0
    for first in range(0, len(hashes), 100):
        before = [shard.__sizeof__() for shard in table.shards]
        table.store(holding, pack_hashes(hashes[first : first + 100]))
        grown = [shard.__sizeof__() for shard in table.shards]
        steps = max(steps, *(b - a for a, b in zip(before, grown, strict=True)))

    # Growing copies a dict: 100,000 blocks in one would take 5 MB at a time.
    assert steps < 40_000


def test_a_shard_that_lost_most_blocks_is_made_anew() -> None:
    table, slots = BlockTable(), Slots()
    table.store(table.admit(A, slots.assign(A)), pack_hashes(range(1000 * 256)))
    before = table.shards[0].__sizeof__()
    slots.release(A)

    sizes = list(clear_released(slots, [table]))

    assert sizes == [1000] * 256
    assert table.size() == 0
    assert table.shards[0].__sizeof__() < before / 100


def test_a_frozen_table_copies_only_what_changes_before_it_is_read() -> None:
    table, slots = table_of(2560)
    frozen = table.freeze()
    assert frozen.take(0) == dict.fromkeys(range(10), 3)

    table.store(table.holdings[A], pack_hashes([2560, 2561, 2562]))
    table.remove(table.holdings[A], pack_hashes([0, 1, 2]))
    table.move(pack_hashes([3]), 3, BlockTable())
    BlockTable().move(pack_hashes([4]), 4, table)
    slots.release(B)
    list(clear_released(slots, [table]))

    for number in range(1, 256):
        assert frozen.take(number) == dict.fromkeys(range(10), 3)
    frozen.close()
    table.store(table.holdings[A], pack_hashes([0]))
    assert table.shards[0][0] == 1


def test_names_are_decoded_also_when_there_are_many_masks() -> None:
    slots = Slots()
    names = [WorkerId(f"w{number}") for number in range(13)]
    for name in names:
        slots.assign(name)

    for mask in range(1 << 13):
        expected = tuple(name for slot, name in enumerate(names) if mask >> slot & 1)
        assert slots.decode(mask) == expected == slots.decode(mask)
