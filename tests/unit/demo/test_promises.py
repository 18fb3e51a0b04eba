import msgspec
import pytest

from kvmesh_lab.demo.measures import Measured
from kvmesh_lab.demo.promises import Row, Scene, judge, missed
from kvmesh_lab.demo.result import DemoReport, Part, exit_code, verdict
from kvmesh_lab.demo.texts import Demonstration

GOOD = Measured(
    requests=240,
    failed=0,
    workers=4,
    duration_s=10.0,
    hit_rate=0.7,
    ceiling=0.75,
    ready=0.75,
    high_overlap=100,
    ttft_s=0.05,
    tokens_per_s=1300.0,
    same_worker=1.0,
    busy={"a": 0.9, "b": 0.8},
    busy_spread=0.1,
    served={"a": 100, "b": 90},
    served_spread=0.1,
)
BASE = msgspec.structs.replace(GOOD, hit_rate=0.2, ttft_s=0.1, tokens_per_s=1000.0)


def scene(
    demonstration: Demonstration = "shared system prompt",
    kv: Measured = GOOD,
    base: Measured | None = BASE,
    **changes: object,
) -> Scene:
    passes = {"kv": kv} | ({"round-robin": base} if base else {})
    made = Scene(demonstration, "full", 64, 240, 0.6, passes)
    return msgspec.structs.replace(made, **changes)


def row(rows: list[Row], promise: str) -> Row:
    return next(one for one in rows if one.promise == promise)


def kv(**changes: object) -> Measured:
    return msgspec.structs.replace(GOOD, **changes)


def test_what_is_within_the_ranges_is_kept_and_round_robin_is_what_changes_count_from() -> None:
    rows = judge(scene())

    assert {one.promise: one.cells["kv"].verdict for one in rows} == {
        "hit rate": "kept",
        "TTFT": "kept",
        "throughput": "kept",
        "utilisation": "kept",
    }
    assert {one.promise: one.cells["round-robin"].verdict for one in rows} == {
        "hit rate": "missed",
        "TTFT": "baseline",
        "throughput": "baseline",
        "utilisation": "kept",
    }
    assert row(rows, "TTFT").cells["kv"].text == "50 ms, -50%"
    assert row(rows, "TTFT").promised == "-30% to -70%"
    assert row(rows, "throughput").cells["kv"].value == pytest.approx(0.3)
    assert missed(rows) == []
    assert [one.promise for one in missed(rows, "round-robin")] == ["hit rate"]


@pytest.mark.parametrize(
    ("changes", "promise", "verdict"),
    [
        ({"hit_rate": 0.599}, "hit rate", "missed"),
        ({"hit_rate": 0.81}, "hit rate", "above"),
        ({"ttft_s": 0.0701}, "TTFT", "missed"),
        ({"ttft_s": 0.029}, "TTFT", "above"),
        ({"tokens_per_s": 1199.0}, "throughput", "missed"),
        ({"tokens_per_s": 1401.0}, "throughput", "above"),
        ({"served_spread": 0.21}, "utilisation", "missed"),
        ({"busy_spread": 0.21}, "utilisation", "missed"),
        ({"ttft_s": None}, "TTFT", "not applicable"),
    ],
)
def test_beyond_a_range_is_missed_or_above(
    changes: dict[str, object], promise: str, verdict: str
) -> None:
    rows = judge(scene(kv=kv(**changes)))

    assert row(rows, promise).cells["kv"].verdict == verdict


@pytest.mark.parametrize(
    ("changes", "promise", "why"),
    [
        ({"lanes": 7}, "throughput", "7 at a time leave workers idle"),
        ({"lanes": 121}, "throughput", "240 requests, 121 of them at once"),
        ({"savable_ttft": 0.29}, "TTFT", "saves 29%"),
        ({"dialogues": 5}, "utilisation", "5 on 4 workers"),
    ],
)
def test_what_no_policy_could_keep_is_not_applicable_and_says_why(
    changes: dict[str, object], promise: str, why: str
) -> None:
    found = row(judge(msgspec.structs.replace(scene(), **changes)), promise)

    assert why in found.why
    assert {one.verdict for one in found.cells.values()} == {"not applicable"}


def test_hits_that_one_cache_would_not_have_are_not_asked_for() -> None:
    few = {"hit_rate": 0.5, "ceiling": 0.59}
    at_once = {"hit_rate": 0.5, "ready": 0.1}

    assert "would hit 59%" in row(judge(scene(kv=kv(**few), base=None)), "hit rate").why
    assert "sent at once" in row(judge(scene(kv=kv(**at_once), base=None)), "hit rate").why
    # What one policy's pass shows to be possible is possible.
    assert row(judge(scene(kv=kv(**few))), "hit rate").cells["kv"].verdict == "missed"


def test_a_prompt_of_which_less_than_half_was_sent_has_no_high_overlap() -> None:
    rows = judge(scene(kv=kv(high_overlap=0), base=kv(high_overlap=0)))

    assert "of no prompt half" in row(rows, "TTFT").why


def test_conversations_must_stay_while_nothing_moves_them() -> None:
    light = row(judge(scene("multi-turn", kv=kv(same_worker=0.97), lanes=1)), "same worker")
    full = row(judge(scene("multi-turn", kv=kv(same_worker=0.97))), "same worker")

    assert light.cells["kv"].verdict == "missed"
    assert full.cells["kv"].verdict == "not applicable"
    assert "may move" in full.why
    alone = judge(scene("multi-turn", kv=kv(same_worker=None), lanes=1))
    assert row(alone, "same worker").cells["kv"].text == "-"


def test_a_missed_promise_or_a_failed_request_is_an_error_for_scripts() -> None:
    good = Part.of(scene(), [])
    bad = Part.of(scene(kv=kv(hit_rate=0.1)), [])
    failed = Part.of(scene(), ["kv: http 503: full"])

    def report(*parts: Part) -> DemoReport:
        return DemoReport("here", "mock", ["a", "b"], list(parts))

    assert [exit_code(report(one)) for one in (good, bad, failed)] == [0, 1, 1]
    assert verdict(report(good)) == (
        "promises kept: kv 4 of 4, round-robin 1 of 2. kv missed no promise."
    )
    assert verdict(report(good, bad)).endswith("kv missed: shared system prompt, full: hit rate.")
