import msgspec
import pytest

from kvmesh.core.cost.formulas import OVERLAP_LOAD, OVERLAP_USAGE_WAITING
from kvmesh.core.cost.weights import weights_of
from kvmesh.core.routing.policy import parse_policy
from kvmesh_lab.analyze.advice import advise
from kvmesh_lab.analyze.reuse import Family, Reuse, measure_reuse
from kvmesh_lab.analyze.weight_advice import (
    LOWER_OVERLAP,
    LOWER_USAGE,
    MANY_BLOCKS,
    MORE_OVERLAP,
    Advice,
    FleetSize,
    WorkerLoad,
    advise_spread,
    advise_weights,
)
from kvmesh_lab.report.outcome import distribution
from kvmesh_lab.traces.trace import TraceRequest

DEEP = distribution([800.0])
LOAD = Reuse(
    requests=100,
    duration_s=60.0,
    block_size=16,
    prompt_tokens=100_000,
    output_tokens=20_000,
    unlimited=0.6,
    round_robin={2: 0.3},
    curve=(),
    distinct_blocks=1000,
    core_blocks=500,
    core_depth=DEEP,
    gap_s=None,
    families=(Family(50, 0.3), Family(50, 0.3)),
)


def words(
    load: Reuse = LOAD, *, tokens: int = 0, size: int = 16, working_set: int = 100_000
) -> str:
    return said(advise_weights(load, FleetSize(4, tokens, size), working_set))


def said(found: list[Advice]) -> str:
    return "\n".join(f"{one.what}: {one.why}" for one in found)


def test_more_than_a_million_blocks_need_little_weight_on_cache_usage() -> None:
    text = words(tokens=16 * (MANY_BLOCKS + 1), working_set=10**9)

    assert "kv:overlap-usage-waiting:gpu_cache_usage_weight=0.25" in text
    assert "each worker has 1,000,001 KV blocks" in text
    assert "weight_load" in text


@pytest.mark.parametrize(
    "changes",
    [{"unlimited": 0.19}, {"core_depth": distribution([199.0])}, {"core_depth": None}],
)
def test_low_hits_or_a_short_core_prefix_need_less_weight_on_overlap(
    changes: dict[str, object],
) -> None:
    text = words(msgspec.structs.replace(LOAD, **changes))

    assert "a low weight on overlap: kv:overlap-usage-waiting:overlap_score_weight=1" in text
    assert "of 1,000 prompt tokens deep" in text


def test_many_different_beginnings_need_more() -> None:
    families = tuple(Family(2, 0.02) for _ in range(50))

    assert "a high weight on overlap" in words(msgspec.structs.replace(LOAD, families=families))
    fewer = msgspec.structs.replace(LOAD, families=families[:49])
    assert "overlap as it is" in words(fewer)
    assert "overlap as it is" in words(msgspec.structs.replace(LOAD, families=()))


@pytest.mark.parametrize(
    ("output_tokens", "word"),
    [(5_000, "prefill-heavy"), (5_001, ""), (39_999, ""), (40_000, "decode-heavy")],
)
def test_the_phase_that_is_nearly_all_of_the_work_is_named(output_tokens: int, word: str) -> None:
    text = words(msgspec.structs.replace(LOAD, output_tokens=output_tokens))

    assert ("-heavy" in text) == bool(word)
    assert word in text


def test_a_trace_is_advised_on_all_of_them() -> None:
    requests = [
        TraceRequest(number, 1000.0 * number, 4096, 8, (*range(128), 1000 + number))
        for number in range(20)
    ]
    text = said(advise(measure_reuse(requests, 32), FleetSize(2, 16 * 2_000_000)))

    for part in ("gpu_cache_usage_weight=0.25", "weight on overlap", "one bucket"):
        assert part in text


@pytest.mark.parametrize("policy", [LOWER_USAGE, LOWER_OVERLAP, MORE_OVERLAP])
def test_the_policies_that_are_advised_can_be_set(policy: str) -> None:
    options = parse_policy(policy, 16)

    assert options.cost == "overlap-usage-waiting"
    assert options.weights


def test_the_weights_are_said_to_be_what_they_are_unless_set() -> None:
    usual = weights_of(OVERLAP_USAGE_WAITING.weights.default)

    assert usual["gpu_cache_usage_weight"] == 1.0
    assert usual["overlap_score_weight"] == 2.0
    assert "weight_load" in weights_of(OVERLAP_LOAD.weights.default)


def test_an_uneven_fleet_is_named() -> None:
    even = [WorkerLoad(f"w{number}", 6) for number in range(4)]
    hot = [*even[:3], WorkerLoad("w3", 60)]

    assert advise_spread("chat", even) == []
    assert advise_spread("chat", even[:1]) == []
    assert advise_spread("chat", [WorkerLoad("w0", 0), WorkerLoad("w1", 7)]) == []
    (found,) = advise_spread("chat", hot)
    assert "--router-temperature 0.1" in found.what
    assert (
        "worker w3 has 60 of the 78 open requests of bucket chat, 3.1 times the mean" in found.why
    )
