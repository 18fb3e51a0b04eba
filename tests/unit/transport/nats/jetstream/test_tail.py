"""What a tail delivers, without a server."""

from collections.abc import Callable
from typing import Any, Never

import pytest

from kvmesh.errors import TransportError
from kvmesh.ports import Record, StreamState
from kvmesh.transport.nats.jetstream.tail import NatsTail, TailPlace


class Away:
    """A JetStream that does not answer, and its connection."""

    @property
    def connection(self) -> "Away":
        return self

    def on_change(self, changed: Callable[[bool], None]) -> Callable[[], None]:
        del changed
        return lambda: None

    async def stream_info(self, *_: object, **__: object) -> Never:
        raise TransportError("away")


class Reader:
    """Fails at the record 2, and at the first gap."""

    def __init__(self) -> None:
        self.got: list[object] = []
        self.failing = {2, "gap"}

    def _fail(self, at: object) -> None:
        if at in self.failing:
            self.failing.remove(at)
            raise ArithmeticError(at)

    def on_record(self, record: Record) -> None:
        self._fail(record.sequence)
        self.got.append(record.sequence)

    def on_gap(self, first: int, last: int) -> None:
        self._fail("gap")
        self.got.append((first, last))

    def on_recreated(self, state: StreamState) -> None:
        self.got.append(state)

    def on_caught_up(self, sequence: int) -> None:
        self.got.append(sequence)


async def test_a_reader_that_fails_is_told_what_follows() -> None:
    jetstream: Any = Away()
    reader = Reader()
    tail = NatsTail(jetstream, TailPlace("S", ("s",)), 0, "", reader)

    tail.on_message(1, "s", b"", 7)
    for sequence in (2, 4):
        with pytest.raises(ArithmeticError):
            tail.on_message(sequence, "s", b"", 7)
    tail.on_message(6, "s", b"", 7)
    tail.on_message(6, "s", b"", 7)

    assert reader.got == [1, (4, 5), 6]
    statistics = tail.statistics()
    assert (statistics.gaps, statistics.missed_records, statistics.position) == (2, 3, 6)
    assert (statistics.records, statistics.duplicates) == (3, 1)
    await tail.close()
