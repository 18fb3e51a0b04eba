"""Journal messages folded in one call against events one by one: the same index, counts, cursors.

What is told here is in order or not, ordinary or not, and broken in every way.
"""

import struct
from collections.abc import Callable
from functools import partial
from typing import cast

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kvmesh._native import Table
from kvmesh.core.blocks.events import (
    ENDS,
    ROOT,
    VERSION,
    Batch,
    Cleared,
    Event,
    Removed,
    Reuse,
    Stored,
    WorkerId,
)
from kvmesh.core.blocks.events import encode_batch as encode
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.index.index import KvIndex
from kvmesh.core.journal.ordering import Cursor
from kvmesh.core.journal.replica import IndexReplica

WORKERS = [WorkerId("a"), WorkerId("b")]
BLOCKS = [1, 2, 255, 2**64 - 1, 1 << 63, *(number << 8 | 7 for number in range(12))]

runs = st.lists(st.sampled_from(BLOCKS), max_size=6).map(pack_hashes)
parents = st.just(ROOT) | st.sampled_from(BLOCKS)
ordinary = st.one_of(
    st.builds(Stored, parents, runs),
    st.builds(Removed, runs),
    st.builds(Stored, st.just(ROOT), runs, st.just(ENDS)),
    st.builds(Removed, runs, st.just(ENDS)),
)
rare = st.one_of(
    st.builds(Reuse, st.sampled_from([0, 1]), st.sampled_from([0, 1])),
    st.builds(Stored, parents, runs, st.sampled_from([ENDS + 1, ENDS + 4])),
    st.builds(Cleared),
    st.builds(Stored, parents, runs, st.sampled_from([1, 3, 255])),
    st.builds(Removed, runs, st.sampled_from([1, 3])),
    st.builds(Stored, parents, st.binary(max_size=20)),
)
batches = st.lists(ordinary, min_size=1, max_size=6) | st.lists(ordinary | rare, max_size=6)


def note(removed: list[tuple[WorkerId, bytes]], worker: WorkerId, run: bytes) -> None:
    removed.append((worker, run))


class TwinMachine(RuleBasedStateMachine):
    """Two replicas that read the same journal, one event by event."""

    @initialize(max_blocks=st.sampled_from([8, 24, 4096]))
    def start(self, max_blocks: int) -> None:
        self.twins = [IndexReplica(KvIndex(max_blocks)) for _ in range(2)]
        self.twins[0].index.fold = lambda *_: None  # type: ignore[method-assign]
        self.removed: list[list[tuple[WorkerId, bytes]]] = [[], []]
        for replica, removed in zip(self.twins, self.removed, strict=True):
            replica.open("today", 0.0)
            replica.index.watchers.append(partial(note, removed))
        self.sequence = 0

    def tell(self, worker: WorkerId, data: bytes) -> None:
        self.sequence += 1
        single, folded = (one.fold(self.sequence, worker, data, 1.0) for one in self.twins)

        assert single == folded

    def batch(self, worker: WorkerId, events: list[Event], skew: int) -> Batch:
        cursor = self.twins[0].cursors().get(worker, Cursor(1, 1))
        return Batch(VERSION, cursor.epoch, max(0, cursor.next_seq + skew), events)

    @rule(worker=st.sampled_from(WORKERS), run=runs)
    def group(self, worker: WorkerId, run: bytes) -> None:
        """Have the worker told of as one with a rule and ends, of which ordinary messages tell."""
        events: list[Event] = [Reuse(), Stored(ROOT, run), Stored(ROOT, run, ENDS)]
        self.tell(worker, encode(self.batch(worker, events, 0)))

    @rule(worker=st.sampled_from(WORKERS), events=batches)
    def tell_what_comes_next(self, worker: WorkerId, events: list[Event]) -> None:
        self.tell(worker, encode(self.batch(worker, events, 0)))

    @rule(
        worker=st.sampled_from(WORKERS),
        events=batches,
        skew=st.integers(-3, 2),
        epochs=st.integers(-1, 1),
    )
    def tell_out_of_order(
        self, worker: WorkerId, events: list[Event], skew: int, epochs: int
    ) -> None:
        batch = self.batch(worker, events, skew)
        later = Batch(VERSION, max(0, batch.epoch + epochs), batch.first_seq, events)
        self.tell(worker, encode(later))

    @rule(
        worker=st.sampled_from(WORKERS),
        events=batches,
        at=st.integers(0, 2000),
        byte=st.integers(0, 255),
        cut=st.booleans(),
    )
    def tell_a_broken_one(
        self, worker: WorkerId, events: list[Event], at: int, byte: int, *, cut: bool
    ) -> None:
        data = bytearray(encode(self.batch(worker, events, 0)))
        at %= len(data)
        if cut:
            del data[at:]
        else:
            data[at] = byte
        self.tell(worker, bytes(data))

    @rule(worker=st.sampled_from(WORKERS), run=runs, parent=parents, form=st.integers(0, 7))
    def tell_in_another_form(self, worker: WorkerId, run: bytes, parent: int, form: int) -> None:
        head = self.batch(worker, [], 0)
        event: list[object] = [0, parent, run, 0]
        fields: list[object] = [VERSION, head.epoch, head.first_seq, [event]]
        if form == 0:
            event.append("more")
        elif form == 1:
            fields.append("more")
        elif form == 2:
            del event[3]
        elif form == 3:
            event[0] = True
        elif form == 4:
            event[1] = float(parent)
        data = msgspec.msgpack.encode(fields)
        if form == 5:
            data += b"\0"
        elif form == 6:
            data = data.replace(b"\x94\x01", b"\xdc\0\4\xcd\0\1", 1)
        elif form == 7:
            data = data[:1] + b"\xd0" + data[1:]
        self.tell(worker, data)

    @rule()
    def sweep(self) -> None:
        for replica in self.twins:
            replica.index.sweep(100)

    @invariant()
    def both_are_the_same(self) -> None:
        single, folded = self.twins

        assert single.claim() == folded.claim()
        assert single.cursors() == folded.cursors()
        assert single.statistics() == folded.statistics()
        assert single.index.statistics() == folded.index.statistics()
        assert single.index.digest() == folded.index.digest()
        assert self.removed[0] == self.removed[1]


def test_a_message_at_once_does_what_its_events_do_one_by_one() -> None:
    run_state_machine_as_test(TwinMachine)


def test_an_ordinary_message_is_folded_at_once() -> None:
    index = KvIndex()
    worker = WORKERS[0]
    index.apply(worker, Stored(ROOT, pack_hashes([1])))
    index.apply(worker, Stored(1, pack_hashes([2])))
    events: list[Event] = [
        Stored(2, pack_hashes([3, 4])),
        Removed(pack_hashes([4, 9])),
        Stored(7, b"12345678"),
    ]
    data = encode(Batch(VERSION, 5, 17, events))

    assert index.fold(worker, data, 5, 17) == (3, 1)
    assert index.blocks(worker) == 3
    assert (index.stored, index.removed) == (5, 1)
    assert index.fold(worker, data, 5, 18) is None
    assert index.fold(worker, data, 6, 17) is None
    assert index.fold(WORKERS[1], data, 5, 17) is None


def test_ends_of_a_grouped_worker_are_folded_at_once() -> None:
    index, worker = KvIndex(), WORKERS[0]
    for event in (Reuse(), Stored(ROOT, pack_hashes([1])), Stored(ROOT, pack_hashes([1]), ENDS)):
        index.apply(worker, event)
    events: list[Event] = [
        Stored(1, pack_hashes([2])),
        Stored(9, pack_hashes([2, 3]), ENDS),
        Removed(pack_hashes([1, 7]), ENDS),
    ]
    data = encode(Batch(VERSION, 5, 17, events))

    assert index.fold(worker, data, 5, 17) == (3, 0)
    statistics = index.statistics()
    assert (statistics.blocks, statistics.ends, statistics.missing) == (2, 2, 1)
    assert (index.stored, index.removed) == (2, 0)
    later = encode(Batch(VERSION, 5, 20, [Stored(ROOT, pack_hashes([4]), ENDS + 1)]))
    assert index.fold(worker, later, 5, 20) is None
    index.apply(worker, Cleared())
    index.apply(worker, Stored(ROOT, pack_hashes([1])))
    assert index.fold(worker, data, 5, 17) is None


@pytest.mark.parametrize("number", [-1, 2**64, 2**200])
def test_numbers_beyond_64_bits_fit_no_message(number: int) -> None:
    table = Table()
    holding = table.admit(WORKERS[0], 1)
    data = encode(Batch(VERSION, 1, 1, [Stored(ROOT, pack_hashes([1]))]))

    assert table.fold(holding, data, number, 1, 10) is None
    assert table.fold(holding, data, 1, number, 10) is None
    assert table.fold(holding, data, 1, 1, 0) is None
    assert table.size() == 0
    assert table.fold(holding, data, 1, 1, 1) == (1, 1, 0, 0, 0, None)


def test_what_is_no_message_is_refused_as_a_type() -> None:
    table = Table()
    holding = table.admit(WORKERS[0], 1)
    fold = cast("Callable[..., object]", table.fold)
    fold_ends = cast("Callable[..., object]", table.fold_ends)

    for arguments in (
        (holding, b"", 1, 1),
        (None, b"", 1, 1, 1),
        (holding, bytearray(), 1, 1, 1),
        (holding, b"", "1", 1, 1),
        (holding, b"", 1, 1.0, 1),
        (holding, b"", 1, 1, None),
    ):
        with pytest.raises(TypeError):
            fold(*arguments)
        with pytest.raises(TypeError):
            fold_ends(*arguments, (table, holding))
    for where in (None, (), (table,), (table, None), (None, holding), (table, holding, holding)):
        with pytest.raises(TypeError):
            fold_ends(holding, b"", 1, 1, 1, where)
    with pytest.raises(TypeError):
        fold_ends(holding, b"", 1, 1, 1)
    assert fold_ends(holding, b"", 1, 1, 1, (table, holding)) is None


def test_lengths_that_lie_are_not_believed() -> None:
    table = Table()
    holding = table.admit(WORKERS[0], 1)
    head = b"\x94\x01\x01\x01"
    lies = [
        head + b"\xdd\xff\xff\xff\xff",
        head + b"\x91\x94\x00\x00\xc6\xff\xff\xff\xf8",
        head + b"\x91\x94\x00\x00\xc4\x08" + bytes(7),
        head + b"\x91\xdc",
        head + b"\x91\x94\x00\xcf" + struct.pack(">I", 1),
    ]

    assert [table.fold(holding, data, 1, 1, 100) for data in lies] == [None] * len(lies)
    assert table.size() == 0


def test_what_a_message_removes_at_once_is_told() -> None:
    index, worker = KvIndex(), WORKERS[0]
    index.apply(worker, Stored(ROOT, pack_hashes([1, 2])))
    removed: list[tuple[WorkerId, bytes]] = []
    index.watchers.append(partial(note, removed))
    data = encode(Batch(VERSION, 5, 17, [Removed(pack_hashes([2])), Removed(pack_hashes([1]))]))

    assert index.fold(worker, data, 5, 17) == (2, 0)
    assert removed == [(worker, pack_hashes([2])), (worker, pack_hashes([1]))]
