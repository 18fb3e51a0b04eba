"""Ints that an attacker chose cost what random ones do where the product has dicts of them.

CPython hashes an int by itself: 10,752 chosen ones take a dict of ints some 80 times as long. Here
they are keys in packed form (`core.blocks.hashing.as_key`), or never come to a dict.
"""

from array import array
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Final

import pytest

from kvmesh._native import Peer
from kvmesh.core.admission.prefix_groups import PrefixGroups
from kvmesh.core.blocks.events import ROOT, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.buckets.homes import HomeOptions, Homes
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.snapshot_reading import decode_snapshot
from kvmesh.core.index.snapshot_writing import Position, encode_snapshot
from kvmesh.core.insight.load_character import character_of
from kvmesh.core.insight.trace_ring import Traced, TraceRow, mooncake_lines
from kvmesh.core.programs.chains import ChainOptions, Chains
from kvmesh.core.routing.event_fold import EventFold
from kvmesh.core.routing.peer_records import Named
from tests.property.support.chosen_numbers import of_one_way, spent_s
from tests.unit.core.routing.test_unwatched import make_scheduler

BITS: Final = 14
MOST_RATIO: Final = 4.0


def chains(numbers: Sequence[int]) -> None:
    known = Chains(ChainOptions(least_tokens=1, max_per_tenant=1 << 14, max_chains=1 << 14), 1)
    for number in numbers:
        known.learn(BlockHashes.of([number], 1), "", 0.0)
    for number in numbers:  # of each prompt 11 prefixes are looked for
        known.find(BlockHashes.of(array("Q", [number]) * 2047, 1), "", 0.0)


def homes(numbers: Sequence[int]) -> None:
    known = Homes(HomeOptions(shared=False))
    for number in numbers:
        known.note(number, "a", 0.0)
    for number in numbers:
        known.find(number, 0.0)
        known.count_passed(number)


def prefix_groups(numbers: Sequence[int]) -> None:
    groups = PrefixGroups()
    for number in numbers:
        groups.enter(str(number), BlockHashes.of([number], 1))
    for number in numbers:
        groups.leave(str(number))


def names_of_a_replica(numbers: Sequence[int]) -> None:
    fold, peer = EventFold(make_scheduler()), Peer("p", 1, 0.0)
    for number in numbers:
        fold.fold(peer, Named(number, "w"), 0.0)
    for number in numbers:
        fold.fold(peer, Named(number, "v"), 0.0)


def _row(numbers: Sequence[int]) -> TraceRow:
    traced = Traced(0, array("Q", numbers).tobytes())
    return TraceRow(0.0, 1.0, len(numbers), 1, WorkerId("w"), traced)


def a_trace(numbers: Sequence[int]) -> None:
    rows = [_row(numbers), _row(numbers)]
    for _ in range(3):
        b"".join(mooncake_lines(rows, 1))


def firsts_of_a_trace(numbers: Sequence[int]) -> None:
    character_of([_row([number]) for number in numbers], 1)


def snapshot_of_two_tables(numbers: Sequence[int]) -> None:
    """Where an index has old blocks and young ones; all in one part of it."""
    index = KvIndex(len(numbers) * 3 // 2)
    for at in range(0, len(numbers), 128):
        run = [number << 8 | 7 for number in numbers[at : at + 128]]
        index.store(WorkerId("w"), ROOT, pack_hashes(run))
    assert len(index.tiers[0].tables()) == 2

    decode_snapshot(b"".join(encode_snapshot(index.freeze(), Position())))


WAYS: Final = (
    chains,
    homes,
    prefix_groups,
    names_of_a_replica,
    a_trace,
    firsts_of_a_trace,
    snapshot_of_two_tables,
)


@cache
def chosen() -> list[int]:
    return of_one_way(BITS)


def ratio(way: Callable[[list[int]], None]) -> float:
    draw = Random(1)
    usual = draw.sample(range(1 << BITS + 10), len(chosen()))
    usual_s = spent_s(way, usual, 0.0)
    return spent_s(way, chosen(), MOST_RATIO * usual_s) / usual_s


@pytest.mark.parametrize("way", WAYS)
def test_chosen_ints_cost_what_random_ones_do(way: Callable[[list[int]], None]) -> None:
    assert ratio(way) <= MOST_RATIO
