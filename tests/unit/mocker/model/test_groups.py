"""Hybrid engines: hits are what their own events allow, by the rule, under eviction."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.cache_group import split_key
from kvmesh_lab.mocker.model.engine import EngineModel
from kvmesh_lab.mocker.model.lower_tiers import TierOptions
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.request import (
    BlocksRemoved,
    BlocksStored,
    EngineEvent,
    EngineRequest,
    GroupStored,
)
from kvmesh_lab.mocker.model.timing import PROFILES

BLOCK = 4


def engine(
    blocks: int = 100, window: int = 0, groups: int = 1, mamba: int = 0, budget: int = 64
) -> EngineModel:
    return EngineModel(
        EngineOptions(
            block_size=BLOCK,
            num_gpu_blocks=blocks,
            max_num_seqs=8,
            max_num_batched_tokens=budget,
            sliding_window=window,
            window_groups=groups,
            mamba_groups=mamba,
            timing=PROFILES["linear"],
        )
    )


def prompt(name: str, conversation: int, tokens: int, output: int = 1) -> EngineRequest:
    """Prompts of one conversation are prefixes of each other."""
    hashes = [1000 * conversation + place for place in range(1, 1 + tokens // BLOCK)]
    return EngineRequest(name, hashes, tokens, output)


def run(model: EngineModel, *requests: EngineRequest) -> list[EngineEvent]:
    for request in requests:
        model.add(request, 0.0)
    events: list[EngineEvent] = []
    while (step := model.step(0.0)) is not None:
        events += step.events
    return events


def kept(events: list[EngineEvent]) -> list[tuple[int, list[int]]]:
    return [(one.group.number, one.places) for one in events if isinstance(one, GroupStored)]


def test_a_window_keeps_the_blocks_before_the_prompts_end() -> None:
    model = engine(window=9)

    events = run(model, prompt("a", 1, tokens=27))

    [full] = [one.hashes for one in events if isinstance(one, BlocksStored)]
    assert kept(events) == [(1, [4, 5])]
    assert len(full) == 6


def test_mamba_keeps_the_state_at_the_prompts_end() -> None:
    model = engine(mamba=2)

    assert kept(run(model, prompt("a", 1, tokens=28))) == [(1, [5]), (2, [5])]


def test_a_prompt_that_shares_the_front_alone_has_a_state_kept_where_they_part() -> None:
    model = engine(mamba=1)
    first = prompt("a", 1, tokens=41)
    run(model, first)
    second = EngineRequest("b", [*first.hashes[:5], 7, 8, 9], 33, 1)
    third = EngineRequest("c", [*first.hashes[:5], 17, 18, 19], 33, 1)

    events = run(model, second)
    run(model, third)

    assert second.cached_tokens == 0
    assert kept(events) == [(1, [4, 7])]
    assert third.cached_tokens == 5 * BLOCK


def test_an_equal_prompt_that_fills_its_blocks_computes_the_last_again() -> None:
    model = engine(window=9, mamba=1)
    run(model, prompt("a", 1, tokens=28))
    again = prompt("b", 1, tokens=28)

    run(model, again)

    assert again.cached_tokens == 24


def test_a_request_alone_fits_what_it_is_said_to() -> None:
    for model in (engine(40, window=9, groups=3), engine(40, mamba=2), engine(400, window=9)):
        request = prompt("a", 1, tokens=model.capacity_tokens - 9, output=9)

        run(model, request)

        assert request.generated == 9
        assert model.pool.free_blocks == model.pool.usable_blocks


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sliding_window": 1}, "sliding_window is 1: 0 for none, or at least 2"),
        ({"sliding_window": -5}, "sliding_window is -5"),
        ({"window_groups": 0}, "window_groups is 0: it must be 1 to 64"),
        ({"mamba_groups": 10**25}, "mamba_groups is 10000000000000000000000000: it must be 0 to"),
    ],
)
def test_groups_no_engine_has_are_refused(changes: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        EngineOptions(**changes)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Told:
    """What the events say is held, by the number of copies, and the rule on it, from scratch."""

    def __init__(self, model: EngineModel) -> None:
        assert model.groups
        self._groups = model.groups.groups
        self._held: Counter[tuple[int, int]] = Counter()

    def read(self, events: list[EngineEvent]) -> None:
        for event in events:
            match event:
                case BlocksStored():
                    self._held.update((0, one) for one in event.hashes)
                case GroupStored():
                    self._held.update((event.group.number, one) for one in event.hashes)
                case BlocksRemoved():
                    self._held.subtract(split_key(key) for key in event.hashes)
                case _:
                    raise AssertionError(event)
        assert min(self._held.values(), default=0) >= 0

    def reusable(self, hashes: list[int], most: int) -> int:
        return max(length for length in range(most + 1) if self._may_end(hashes, length))

    def _may_end(self, hashes: list[int], length: int) -> bool:
        if any(not self._held[0, one] for one in hashes[:length]):
            return False
        for group in self._groups:
            need = -(-(group.window - 1) // BLOCK) if group.window else min(length, 1)
            tail = hashes[max(0, length - need) : length]
            if any(not self._held[group.number, one] for one in tail):
                return False
        return True


@given(
    window=st.sampled_from([0, 2, 5, 6, 9, 16]),
    groups=st.integers(1, 3),
    mamba=st.integers(0, 2),
    blocks=st.integers(44, 90),
    budget=st.sampled_from([8, 13, 64]),
    waves=st.lists(
        st.lists(
            st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(0, 40), st.integers(1, 9)),
            min_size=1,
            max_size=4,
        ),
        max_size=9,
    ),
)
def test_hits_are_what_the_events_allow_under_eviction(
    window: int,
    groups: int,
    mamba: int,
    blocks: int,
    budget: int,
    waves: list[list[tuple[int, int, int, int]]],
) -> None:
    if not window and not mamba:
        mamba = 1
    model = engine(blocks, window, groups, mamba, budget)
    reported = Told(model)
    for number, wave in enumerate(waves):
        requests: list[EngineRequest] = []
        for place, (conversation, shared, more, output) in enumerate(wave):
            front = [100 * conversation + one for one in range(shared)]
            tokens = max(1, min(shared * BLOCK + more, model.capacity_tokens - output))
            rest = [10_000 * (number + 1) + 100 * place + one for one in range(20)]
            hashes = (front + rest)[: tokens // BLOCK]
            requests.append(EngineRequest(f"{number}-{place}", hashes, tokens, output))
        # Alone first: what is cached then is known before.
        lone = requests[0]
        expected = reported.reusable(lone.hashes, (lone.prompt_tokens - 1) // BLOCK)

        reported.read(run(model, lone))
        reported.read(run(model, *requests[1:]))

        assert lone.cached_tokens == expected * BLOCK
        assert all(one.generated == one.output_tokens for one in requests)
        assert model.pool.free_blocks == model.pool.usable_blocks


def test_an_aborted_request_gives_back_the_blocks_of_all_groups() -> None:
    model = engine(window=9, groups=2, mamba=1, budget=16)
    model.add(prompt("a", 1, tokens=61, output=5), 0.0)
    model.step(0.0)

    model.abort("a")

    assert model.pool.free_blocks == model.pool.usable_blocks


def test_a_hybrid_engine_has_no_slower_tiers() -> None:
    tier = TierOptions(blocks=8, block_ms=1.0)
    with pytest.raises(ConfigError, match="1 slower tiers: hybrid engines have no slower tiers"):
        EngineOptions(sliding_window=16, tiers=(tier,))
