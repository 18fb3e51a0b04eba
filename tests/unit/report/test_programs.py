"""How programs fared: completion, waits, avoidable prefill, fairness."""

import pytest

from kvmesh_lab.report.outcome import RequestOutcome
from kvmesh_lab.report.programs import ProgramFacts, jain, summarize_programs
from kvmesh_lab.report.statistics import Slo, metrics, summarize


def turn(
    index: int,
    program: str,
    sent_s: float,
    latency_s: float = 2.0,
    *,
    cached: int = 0,
    error: str = "",
    held_s: float = 0.0,
) -> RequestOutcome:
    return RequestOutcome(
        index=index,
        session=program,
        sent_ms=sent_s * 1000.0,
        lag_ms=0.0,
        latency_ms=latency_s * 1000.0,
        ttft_ms=100.0,
        prompt_tokens=1000,
        cached_tokens=cached,
        output_tokens=10,
        error=error,
        program=program,
        held_ms=held_s * 1000.0,
    )


FACTS = ProgramFacts(turns={"a": 2, "b": 1, "c": 2}, new_tokens={0: 1000, 1: 200, 2: 1000})


def test_a_program_lasts_from_its_first_request_to_its_last_answer() -> None:
    turns = [turn(0, "a", 10.0), turn(1, "a", 112.0, 3.0), turn(2, "b", 5.0, 8.0)]

    found = summarize_programs(turns, FACTS)

    assert found is not None
    assert (found.programs, found.finished, found.turns) == (2, 2, 3)
    assert found.completion_s is not None
    assert found.completion_s.max == pytest.approx(105.0), "the pause of 100 s included"
    assert found.completion_s.mean == pytest.approx((105.0 + 8.0) / 2)
    assert found.request_s is not None
    assert found.request_s.max == pytest.approx(8.0)


def test_a_program_with_a_turn_missing_or_failed_is_not_finished() -> None:
    turns = [turn(0, "a", 0.0), turn(1, "a", 9.0, error="http 503"), turn(3, "c", 0.0)]

    found = summarize_programs(turns, FACTS)

    assert found is not None
    assert (found.programs, found.finished, found.turns) == (2, 0, 2)
    assert (found.completion_s, found.request_s) == (None, None)


def test_prefill_is_judged_against_one_cache_that_never_evicts() -> None:
    turns = [turn(0, "a", 0.0), turn(1, "a", 9.0, cached=200), turn(2, "b", 0.0)]

    found = summarize_programs(turns, FACTS)

    assert found is not None
    assert found.computed_tokens == 2800
    assert found.necessary_tokens == 2200
    assert found.avoidable_tokens == 600
    assert found.prefill_ratio == pytest.approx(2800 / 2200)


def test_nothing_is_avoidable_where_engines_hit_more_than_the_trace_says() -> None:
    found = summarize_programs([turn(0, "b", 0.0, cached=900)], FACTS)

    assert found is not None
    assert found.avoidable_tokens == 0
    assert found.prefill_ratio == pytest.approx(0.1)
    assert summarize_programs([turn(9, "b", 0.0)], FACTS) is not None
    nothing_new = summarize_programs([turn(9, "b", 0.0)], FACTS)
    assert nothing_new is not None
    assert nothing_new.prefill_ratio == 1.0


def test_waits_are_means_over_all_turns_and_the_longest_of_any() -> None:
    turns = [turn(0, "a", 0.0, held_s=6.0), turn(1, "a", 9.0), turn(2, "b", 0.0)]

    found = summarize_programs(turns, FACTS)

    assert found is not None
    assert found.wait_s_mean == pytest.approx(2.0)
    assert (found.wait_s_max, found.waited) == (6.0, 1)


def test_the_last_programs_pauses_do_not_lower_the_rate_of_turns() -> None:
    turns = [turn(place, "a", float(place), 1.0) for place in range(99)]
    late = turn(99, "b", 50_000.0, 1.0)

    found = summarize_programs([*turns, late], FACTS)

    assert found is not None
    assert found.turns_per_s == pytest.approx(1.0, rel=0.05)


def test_jains_index_of_known_shares() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain([]) == jain([0.0, 0.0]) == 1.0


def test_a_summary_has_programs_where_the_trace_has_them() -> None:
    turns = [turn(0, "a", 0.0), turn(1, "a", 9.0, held_s=1.5)]

    with_programs = summarize(turns, Slo(), programs=FACTS)
    without = summarize(turns, Slo())

    found = {metric.name: metric for metric in metrics(with_programs)}
    assert (found["programs finished"].value, found["programs"].value) == (1, 1)
    assert (found["wait of a turn max"].value, found["wait of a turn max"].unit) == (1.5, "s")
    assert found["program time p90"].unit == "s"
    assert "programs" not in {metric.name for metric in metrics(without)}
