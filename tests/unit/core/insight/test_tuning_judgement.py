import msgspec
import pytest

from kvmesh.core.insight.load_character import Character
from kvmesh.core.insight.tuning_judgement import describe, judge_shadow, model_error, pick
from kvmesh.core.insight.weight_search import Found, Judged
from kvmesh.core.routing.shadow_policy import ShadowReport

DEFAULT = Judged({"a": 1.0}, 1.0, 1.0, 100.0, 10.0)


def found(best: Judged, present: Judged = DEFAULT, measured: float | None = 50.0) -> Found:
    return Found(DEFAULT, present, best, 20, 800, 3.0, 40.0, measured, 9.0, 10.0)


def judged(weight: float, held_out: float, searched: float = 0.9) -> Judged:
    return Judged({"a": weight}, searched, held_out, 90.0, 10.0)


@pytest.mark.parametrize(
    "best",
    [judged(4.0, 0.98), judged(4.0, 1.2), judged(4.0, 0.9, searched=1.0), judged(1.0, 0.9)],
)
def test_nothing_is_picked_that_gains_too_little_or_by_chance(best: Judged) -> None:
    assert pick(found(best), 0.03) is None


def test_the_best_must_beat_both_the_present_and_the_default() -> None:
    present = judged(8.0, 0.9)

    assert pick(found(judged(4.0, 0.89), present), 0.03) is None
    best = judged(4.0, 0.8)
    assert pick(found(best, present), 0.03) is best


def test_a_simulator_that_is_far_off_is_not_believed() -> None:
    assert model_error(found(DEFAULT), 3.0) == ""
    assert model_error(found(DEFAULT, measured=None), 3.0) == ""
    assert "median TTFT 40 ms against 500 ms measured" in model_error(
        found(DEFAULT, measured=500.0), 3.0
    )
    assert "40 ms against 5 ms" in model_error(found(DEFAULT, measured=5.0), 3.0)


REPORT = ShadowReport("kv:x:a=4", 200, 100, 10_000, 5000, 6000, 2000.0, 2500.0, 300, 320)


def test_a_shadow_that_decides_otherwise_speaks_for_a_trial() -> None:
    text, wrong = judge_shadow(REPORT, 1.0)

    assert not wrong
    assert text == (
        "of 200 decisions 50.0% are the same; prefix cached 60.0% against 50.0%,"
        " wait and prefill 32.5 ms against 35.0 ms"
    )


def test_a_shadow_that_agrees_changes_nothing() -> None:
    text, wrong = judge_shadow(msgspec.structs.replace(REPORT, agreed=200), 1.0)

    assert wrong
    assert text.endswith("it would change nothing")


def test_a_shadow_whose_requests_wait_much_longer_is_not_tried() -> None:
    text, wrong = judge_shadow(msgspec.structs.replace(REPORT, would_be_wait_ms=9000.0), 1.0)

    assert wrong
    assert text.endswith("much longer")
    assert not judge_shadow(ShadowReport("kv:x", 0, 0, 0, 0, 0, 0.0, 0.0, 0, 0), 1.0)[1]


def test_a_load_is_told_in_words() -> None:
    assert describe(Character(12.3, 1000.0, 80.0, 0.4, 0.1, 0.9)) == (
        "12.3 requests/s, 1000 prompt tokens, 40% of them shared, 80 output tokens,"
        " 10% with one beginning"
    )
