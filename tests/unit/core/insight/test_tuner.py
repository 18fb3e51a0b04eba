import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.insight.load_character import Character
from kvmesh.core.insight.performance import Performance
from kvmesh.core.insight.tuner import MAX_STEPS, Tuner, TunerOptions
from kvmesh.core.insight.tuning_acts import (
    Act,
    GiveUp,
    PutBack,
    Seen,
    StartSearch,
    StartShadow,
    StartTrial,
    StopShadow,
    TrialSeen,
)
from kvmesh.core.insight.weight_search import Found, Judged
from kvmesh.core.routing.shadow_policy import ShadowReport

LOAD = Character(10.0, 1000.0, 100.0, 0.5, 0.1, 0.8)
OTHER = msgspec.structs.replace(LOAD, output_tokens=600.0)
DEFAULT, BETTER = {"a": 1.0}, {"a": 4.0}
APPLY = TunerOptions(apply=True, observe_s=20.0)
SHADOWED = ShadowReport("kv:x:a=4", 300, 150, 10_000, 5000, 6000, 2000.0, 1500.0, 300, 320)
BEFORE = Performance(900, 200.0, 20.0, 60.0)


def tuner(options: TunerOptions = APPLY) -> Tuner:
    return Tuner(options, "x", DEFAULT)


def seen(
    character: Character | None = LOAD,
    *,
    rows: int = 600,
    present: dict[str, float] = DEFAULT,
    shadow: ShadowReport | None = None,
    trial: TrialSeen | None = None,
) -> Seen:
    return Seen(True, "", rows, character, present, shadow, 1.0, trial)


def result(
    weights: dict[str, float] = BETTER, held_out: float = 0.9, simulated: float = 50.0
) -> Found:
    default = Judged(DEFAULT, 1.0, 1.0, 200.0, 20.0)
    best = Judged(weights, 0.9, held_out, 180.0, 20.0)
    return Found(default, default, best, 20, 600, 5.0, simulated, 50.0, 19.0, 20.0)


def trial(
    phase: str = "done", *, after: Performance = BEFORE, share: float = 1.0, reason: str = "ahead"
) -> TrialSeen:
    return TrialSeen(phase, share, reason, BEFORE, after)  # type: ignore[arg-type]


def searching(options: TunerOptions = APPLY) -> Tuner:
    made = tuner(options)
    assert made.check(seen(), 100.0) == [StartSearch(0.0, ())]
    return made


def shadowing(options: TunerOptions = APPLY) -> Tuner:
    made = searching(options)
    assert made.found(result(), 110.0) == [StartShadow(BETTER)]
    return made


def trying() -> Tuner:
    made = shadowing()
    acts = made.check(seen(shadow=SHADOWED), 200.0)
    assert [type(one) for one in acts] == [StopShadow, StartTrial]
    return made


def kept() -> Tuner:
    made = trying()
    won = Performance(600, 150.0, 20.0, 60.0)
    assert made.check(seen(trial=trial(after=won)), 300.0) == []
    assert made.status().own == BETTER
    return made


def kinds(made: Tuner) -> list[str]:
    return [step.kind for step in made.status().steps]


def test_weights_that_win_are_kept_and_each_step_is_told() -> None:
    made = kept()
    status = made.status()

    assert kinds(made) == ["searches", "found", "shadows", "tries", "kept"]
    assert (status.stage, status.own, status.tuned_for) == ("observing", BETTER, LOAD)
    assert status.steps[-1].text.startswith("kv:x:a=4: p90 TTFT 150 ms")
    assert status.steps[-1].text.endswith("score 0.750: it won")
    assert [step.number for step in status.steps] == [1, 2, 3, 4, 5]


def test_a_search_waits_for_enough_requests_of_one_load() -> None:
    made = tuner()

    assert made.check(seen(None, rows=100), 10.0) == []
    assert made.check(seen(rows=499), 20.0) == []
    assert made.status().words == "499 of 500 requests seen since the load was like this"
    assert made.check(seen(rows=500), 19.0) == []
    assert made.status().words == "observes this load for 1 s more"
    assert made.check(seen(rows=500), 30.0) == [StartSearch(0.0, ())]
    assert made.check(seen(rows=600), 40.0) == []


def test_to_propose_is_only_to_tell() -> None:
    made = shadowing(TunerOptions(apply=False, observe_s=20.0))

    assert made.check(seen(shadow=SHADOWED), 200.0) == [StopShadow()]
    assert made.status().proposal == "kv:x:a=4"
    assert kinds(made)[-1] == "proposes"
    assert made.check(seen(), 300.0) == []
    assert "looks again in 3500 s" in made.status().words
    assert made.check(seen(), 3800.0) == [StartSearch(0.0, ())]


def test_what_lost_is_put_back_and_not_proposed_soon_again() -> None:
    made = trying()
    lost = Performance(600, 220.0, 20.0, 60.0)

    (act,) = made.check(seen(present=BETTER, trial=trial(after=lost)), 300.0)

    assert isinstance(act, PutBack)
    assert act.weights == DEFAULT
    assert "did not win" in act.why
    assert made.check(seen(), 400.0) == []
    assert made.check(seen(), 900.0) == [StartSearch(0.0, ())]
    assert made.found(result(), 910.0) == []
    assert kinds(made)[-1] == "dropped"
    assert "returned lately" in made.status().words
    assert made.check(seen(), 8000.0) == [StartSearch(0.0, ())]
    assert made.found(result(), 8010.0) == [StartShadow(BETTER)]


def test_a_trial_is_over_when_the_rollout_returned() -> None:
    made = trying()

    assert made.check(seen(trial=trial("returned", share=0.05, reason="errors")), 300.0) == []
    assert kinds(made)[-1] == "returned"
    assert "kv:x:a=4 at 5%: errors" in made.status().words
    assert made.status().own is None


def test_a_trial_lasts_until_enough_requests_went_by_it_alone() -> None:
    made = trying()

    for one in (None, trial("running", share=0.05), trial(after=Performance(499, 1.0, 1.0, 60.0))):
        assert made.check(seen(trial=one), 300.0) == []
        assert made.stage == "trying"
    assert "499 of 500 seen since it has all" in made.status().words
    assert made.check(seen(trial=trial(after=Performance(900, 1.0, 1.0, 19.0))), 300.0) == []
    assert made.stage == "trying"


def test_a_trial_that_cannot_begin_is_dropped() -> None:
    made = trying()

    assert made.trial_failed("another is under way", 300.0) == []
    assert made.status().words == "cannot be tried: another is under way"
    assert made.trial_failed("again", 301.0) == []
    assert made.status().words == "cannot be tried: another is under way"


def test_another_load_puts_the_default_back_and_is_tuned_anew() -> None:
    made = kept()

    assert made.check(seen(OTHER, present=BETTER), 400.0) == []
    (act,) = made.check(seen(OTHER, present=BETTER), 410.0)

    assert isinstance(act, PutBack)
    assert act.weights == DEFAULT
    assert "output tokens 100 -> 600" in act.why
    assert made.since_s == 410.0
    assert made.status().own is None
    assert made.check(seen(OTHER, rows=600), 439.0) == []
    assert made.check(seen(OTHER, rows=600), 440.0) == [StartSearch(410.0, ())]


def test_weights_of_an_operator_are_left_when_the_load_changes() -> None:
    made = kept()
    for now in (400.0, 410.0):
        assert made.check(seen(OTHER, present={"a": 7.0}), now) == []

    assert made.status().own is None
    assert kinds(made)[-1] == "drifted"


def test_what_won_before_is_where_the_next_search_of_such_a_load_begins() -> None:
    made = kept()
    for now in (400.0, 410.0):
        made.check(seen(OTHER, present=BETTER), now)
    for now in (500.0, 510.0):
        made.check(seen(OTHER), now)
    made.found(result(held_out=1.0), 520.0)
    for now in (600.0, 610.0):
        made.check(seen(LOAD), now)
    assert made.check(seen(LOAD), 700.0) == [StartSearch(610.0, (BETTER,))]


@pytest.mark.parametrize(
    ("make", "act"), [(searching, GiveUp), (shadowing, StopShadow), (trying, GiveUp)]
)
def test_what_is_under_way_ends_when_the_load_changes(make: object, act: type[Act]) -> None:
    made = make()  # type: ignore[operator]
    made.check(seen(OTHER), 300.0)

    assert [type(one) for one in made.check(seen(OTHER), 301.0)] == [act]
    assert (made.stage, made.candidate) == ("observing", None)


@pytest.mark.parametrize(
    ("make", "acts"),
    [(tuner, []), (searching, [GiveUp]), (shadowing, [StopShadow]), (trying, [GiveUp])],
)
def test_one_that_does_not_lead_stands_aside(make: object, acts: list[type[Act]]) -> None:
    made = make()  # type: ignore[operator]
    aside = msgspec.structs.replace(seen(), leads=False)

    assert [type(one) for one in made.check(aside, 300.0)] == acts
    assert made.check(aside, 301.0) == []
    assert (made.stage, made.status().words) == (
        "following",
        "another replica of the bucket tunes",
    )
    assert kinds(made).count("waits") == 1
    assert made.check(seen(rows=0), 302.0) == []
    assert (made.stage, made.since_s) == ("observing", 302.0)


@pytest.mark.parametrize(
    ("found", "kind", "words", "again_s"),
    [
        (result(held_out=0.99), "nothing-better", "nothing better by 3% in 20 trials", 3710.0),
        (result(simulated=500.0), "dropped", "not like this one", 710.0),
    ],
)
def test_nothing_is_tried_that_promises_nothing(
    found: Found, kind: str, words: str, again_s: float
) -> None:
    made = searching()

    assert made.found(found, 110.0) == []
    assert kinds(made)[-1] == kind
    assert words in made.status().words
    assert made.check(seen(), again_s - 1.0) == []
    assert made.check(seen(), again_s) == [StartSearch(0.0, ())]


def test_a_search_that_failed_is_told_and_repeated_later() -> None:
    made = searching()

    assert made.search_failed("out of memory", 110.0) == []
    assert made.status().words == "the search failed: out of memory"
    assert made.search_failed("late", 111.0) == made.found(result(), 111.0) == []
    assert made.status().found is None


def test_a_shadow_is_looked_at_for_long_enough() -> None:
    made = shadowing()
    few = msgspec.structs.replace(SHADOWED, decisions=199)

    for now, report in ((120.0, None), (180.0, few), (169.0, SHADOWED)):
        assert made.check(seen(shadow=report), now) == []
        assert made.stage == "shadowing"
    assert made.check(seen(shadow=few), 710.0) == [StopShadow()]
    assert "only 199 decisions" in made.status().words


def test_a_shadow_that_would_do_harm_is_not_tried() -> None:
    made = shadowing()
    slow = msgspec.structs.replace(SHADOWED, would_be_wait_ms=90_000.0)

    assert made.check(seen(shadow=slow), 200.0) == [StopShadow()]
    assert kinds(made)[-1] == "dropped"
    made.check(seen(), 900.0)
    assert made.found(result(), 910.0) == []


def test_before_the_character_is_known_nothing_drifts() -> None:
    made = trying()
    made._base = None

    assert made.check(seen(OTHER, trial=trial(after=Performance(600, 1.0, 1.0, 60.0))), 300.0) == []
    assert made.status().own == BETTER


LOOKS = st.tuples(
    st.floats(0.0, 2000.0),
    st.sampled_from([LOAD, OTHER, None]),
    st.sampled_from([True, True, True, False]),
    st.sampled_from(["", "", "", "busy"]),
    st.integers(0, 2000),
    st.sampled_from([None, SHADOWED]),
    st.sampled_from(
        [
            None,
            trial("running"),
            trial("returned"),
            trial(after=Performance(600, 1.0, 1.0, 60.0)),
            trial(),
        ]
    ),
    st.sampled_from(["", "found", "nothing", "failed", "untried"]),
)


UNDER_WAY: dict[type[Act], tuple[tuple[str, ...], str, str]] = {
    StartSearch: (("",), "searching", ""),
    StartShadow: (("", "searching"), "shadowing", ""),
    StartTrial: (("",), "trying", "tries"),
    StopShadow: (("shadowing",), "", ""),
    GiveUp: (("searching", "trying"), "", "returns"),
    PutBack: (("", "trying"), "", "returns"),
}
"""What may be under way before an act, what is after it, and what it does to the weights."""


def tell(made: Tuner, event: object, now: float) -> list[Act]:
    match event:
        case "found":
            return made.found(result(), now)
        case "nothing":
            return made.found(result(held_out=1.0), now)
        case "failed":
            return made.search_failed("why", now)
        case "untried":
            return made.trial_failed("why", now)
        case _:
            return []


@given(st.lists(LOOKS, max_size=80), st.booleans())
def test_whatever_happens_it_does_one_thing_at_a_time(
    uses_caches: list[tuple[object, ...]], apply: bool
) -> None:
    """A naive book of what is under way: nothing begins twice, all that begins ends."""
    made, now, under_way = tuner(TunerOptions(apply=apply, observe_s=20.0)), 0.0, ""
    in_force = DEFAULT
    for gap, character, leads, obstacle, rows, shadow, tried, event in uses_caches:
        now += gap  # type: ignore[operator]
        check = Seen(leads, obstacle, rows, character, in_force, shadow, 1.0, tried)  # type: ignore[arg-type]
        acts: list[Act] = made.check(check, now)
        acts += tell(made, event, now)
        for act in acts:
            before, after, kind = UNDER_WAY[type(act)]
            assert under_way in before
            under_way = after
            assert apply or kind != "tries"
            in_force = {"tries": BETTER, "returns": DEFAULT}.get(kind, in_force)
        if made.stage not in ("searching", "shadowing", "trying"):
            under_way = ""
        assert under_way in ("", made.stage)
        assert len(made.status().steps) <= MAX_STEPS
        assert apply or in_force == DEFAULT
