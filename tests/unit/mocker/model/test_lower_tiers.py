from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import ROOT
from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.engine import EngineModel
from kvmesh_lab.mocker.model.lower_tiers import LowerTiers, TierOptions
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.request import (
    BlocksRemoved,
    BlocksStored,
    BlocksSunk,
    EngineEvent,
    EngineRequest,
)
from kvmesh_lab.mocker.model.timing import PROFILES

HOST, DISK = TierOptions(8, 10.0, 5.0), TierOptions(4, 100.0)


def make_engine(*tiers: TierOptions, blocks: int = 9) -> EngineModel:
    return EngineModel(EngineOptions(num_gpu_blocks=blocks, tiers=tiers, timing=PROFILES["linear"]))


def prompt(first: int, blocks: int = 4) -> list[int]:
    return list(range(first, first + blocks))


class Clock:
    """Runs an engine step by step and keeps what it told."""

    def __init__(self, model: EngineModel) -> None:
        self.model = model
        self.now = 0.0
        self.events: list[EngineEvent] = []

    def serve(self, request: EngineRequest) -> float:
        """Return how long a request took to its first token, s."""
        began, first = self.now, -1.0
        self.model.add(request, self.now)
        while True:
            step = self.model.step(self.now)
            if step is None:
                arrives_s = self.model.lower.arrives_s()
                if arrives_s is None:
                    return first - began
                self.now = arrives_s
                continue
            self.now += step.duration_s
            self.events += step.events
            if step.prefilled:
                first = self.now


def request(name: str, hashes: list[int]) -> EngineRequest:
    return EngineRequest(name, hashes, len(hashes) * 16 + 1, 1)


def test_what_the_device_lost_comes_back_from_host_memory_in_its_time() -> None:
    clock = Clock(make_engine(HOST, blocks=6))
    cold = clock.serve(request("a", prompt(100)))
    clock.serve(request("b", prompt(200)))
    assert not clock.model.pool.find_cached(prompt(100), 1)

    again = request("c", prompt(100))
    warm = clock.serve(again)

    # linear: 5 ms a step and 0.05 a token; four blocks of 10 ms after 5 ms.
    assert cold == pytest.approx(0.005 + 65 * 0.00005)
    assert warm == pytest.approx(0.045 + 0.005 + 0.00005)
    assert again.cached_tokens == 64


def test_blocks_sink_from_tier_to_tier_and_are_told_where_they_are() -> None:
    clock = Clock(make_engine(TierOptions(4, 1.0), DISK))
    for name, first in (("a", 100), ("b", 200), ("c", 300)):
        clock.serve(request(name, prompt(first)))

    left = (one for one in clock.events if isinstance(one, BlocksRemoved | BlocksSunk))
    lower = [one for one in left if one.tier]

    assert lower == [
        BlocksSunk(prompt(100), 2),
        BlocksSunk(prompt(200), 2),
        BlocksRemoved(prompt(100), 2),
    ]
    stored = [one for one in clock.events if isinstance(one, BlocksStored) and one.tier == 1]
    assert [(one.parent, one.hashes) for one in stored] == [
        (ROOT, prompt(first)) for first in (100, 200, 300)
    ]


def test_a_request_that_is_dropped_on_the_way_gives_its_blocks_back() -> None:
    clock = Clock(make_engine(HOST))
    for name, first in (("a", 100), ("b", 200)):
        clock.serve(request(name, prompt(first)))
    model = clock.model
    model.add(request("c", prompt(100)), clock.now)
    assert model.step(clock.now) is None
    assert model.pool.active_blocks == 5

    assert model.abort("c")

    assert model.pool.active_blocks == 0
    assert model.lower.arrives_s() is None
    assert not model.abort("c")


def test_a_cleared_cache_is_cleared_below_too() -> None:
    clock = Clock(make_engine(HOST))
    clock.serve(request("a", prompt(100)))

    assert clock.model.reset_prefix_cache()

    assert clock.model.lower.tiers.find(prompt(100)) == [0]


@pytest.mark.parametrize("tier", [(0, 1.0, 0.0), (-5, 1.0, 0.0), (1, -1.0, 0.0), (1, 1.0, -1.0)])
def test_a_tier_that_cannot_be_is_refused(tier: tuple[int, float, float]) -> None:
    with pytest.raises(ConfigError, match="a block or more"):
        TierOptions(*tier)


@given(
    st.lists(st.lists(st.integers(1, 30), max_size=6, unique=True), max_size=30),
    st.integers(1, 6),
    st.integers(0, 6),
)
def test_tiers_hold_what_a_plain_model_of_them_holds(
    stores: list[list[int]], host: int, disk: int
) -> None:
    sizes = [size for size in (host, disk) if size]
    tiers = LowerTiers([TierOptions(size, 1.0) for size in sizes])
    model: list[list[int]] = [[] for _ in sizes]
    reported: list[Counter[int]] = [Counter() for _ in sizes]
    for hashes in stores:
        moves = tiers.store(hashes)
        for one in hashes:
            for tier in model:
                if one in tier:
                    tier.remove(one)
            model[0].append(one)
        for upper, lower in pairwise(model):
            lower.extend(upper[: max(0, len(upper) - host)])
            del upper[: max(0, len(upper) - host)]
        del model[-1][: max(0, len(model[-1]) - sizes[-1])]
        reported[0].update(moves.stored)
        for place, sunk in enumerate(moves.sunk):
            reported[place].subtract(sunk)
            reported[place + 1].update(sunk)
        for place, gone in enumerate(moves.gone):
            reported[place].subtract(gone)
        assert [Counter(tier) for tier in model] == [+tier for tier in reported]
        assert all(tiers.holds(one) == any(one in tier for tier in model) for one in range(1, 31))


def test_who_needs_blocks_that_are_on_their_way_waits_for_them() -> None:
    clock = Clock(make_engine(HOST, blocks=12))
    for name, first in (("a", 100), ("b", 200), ("c", 300)):
        clock.serve(request(name, prompt(first)))
    model, lower = clock.model, clock.model.lower
    lower.tiers.store(prompt(100))
    held = len(model.pool.find_cached(prompt(100), 4))
    assert held < 4
    both = [request("d", prompt(100)), request("e", prompt(100))]
    for one in both:
        model.add(one, clock.now)

    assert model.step(clock.now) is None
    assert len(lower) == 2
    clock.now = lower.arrives_s() or 0.0
    step = model.step(clock.now)

    assert step is not None
    assert [one.request_id for one in step.started] == ["d", "e"]
    assert [one.cached_tokens for one in both] == [64, 64]
    assert model.pool.active_blocks == 4 + 2


def test_who_waits_for_a_request_that_is_dropped_brings_blocks_itself() -> None:
    clock = Clock(make_engine(HOST, blocks=12))
    for name, first in (("a", 100), ("b", 200), ("c", 300)):
        clock.serve(request(name, prompt(first)))
    model = clock.model
    model.lower.tiers.store(prompt(100))
    for name in ("d", "e"):
        model.add(request(name, prompt(100)), clock.now)
    assert model.step(clock.now) is None

    assert model.abort("d")

    clock.now = model.lower.arrives_s() or 0.0
    assert model.step(clock.now) is None
    clock.now = model.lower.arrives_s() or 0.0
    step = model.step(clock.now)
    assert step is not None
    assert [one.request_id for one in step.started] == ["e"]
