import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.insight.load_character import Character
from kvmesh.core.insight.tuner import MAX_STEPS, Tuner, TunerOptions
from kvmesh.core.insight.tuning_acts import (
    Act,
    GiveUp,
    Seen,
    StartSearch,
    StartShadow,
    StopShadow,
)
from kvmesh.core.insight.weight_search import Found, Judged
from kvmesh.core.routing.shadow_policy import ShadowReport

LOAD = Character(10.0, 1000.0, 100.0, 0.5, 0.1, 0.8)
OTHER = msgspec.structs.replace(LOAD, output_tokens=600.0)
DEFAULT, BETTER = {"a": 1.0}, {"a": 4.0}
OPTIONS = TunerOptions(observe_s=20.0)
SHADOWED = ShadowReport("kv:x:a=4", 300, 150, 10_000, 5000, 6000, 2000.0, 1500.0, 300, 320)


def tuner(options: TunerOptions = OPTIONS) -> Tuner:
    return Tuner(options, "x", DEFAULT)


def seen(
    character: Character | None = LOAD,
    *,
    rows: int = 600,
    shadow: ShadowReport | None = None,
) -> Seen:
    return Seen(True, "", rows, character, shadow, 1.0)


def result(
    weights: dict[str, float] = BETTER, held_out: float = 0.9, simulated: float = 50.0
) -> Found:
    default = Judged(DEFAULT, 1.0, 1.0, 200.0, 20.0)
    best = Judged(weights, 0.9, held_out, 180.0, 20.0)
    return Found(default, default, best, 20, 600, 5.0, simulated, 50.0, 19.0, 20.0)


def searching(options: TunerOptions = OPTIONS) -> Tuner:
    made = tuner(options)
    assert made.check(seen(), 100.0) == [StartSearch(0.0)]
    return made


def shadowing(options: TunerOptions = OPTIONS) -> Tuner:
    made = searching(options)
    assert made.found(result(), 110.0) == [StartShadow(BETTER)]
    return made


def proposed() -> Tuner:
    made = shadowing()
    assert made.check(seen(shadow=SHADOWED), 200.0) == [StopShadow()]
    return made


def kinds(made: Tuner) -> list[str]:
    return [step.kind for step in made.status().steps]


def test_a_search_waits_for_enough_requests_of_one_load() -> None:
    made = tuner()

    assert (made.check(seen(None, rows=100), 10.0), made.check(seen(rows=499), 20.0)) == ([], [])
    assert made.status().words == "499 of 500 requests seen since the load was like this"
    assert made.check(seen(rows=500), 19.0) == []
    assert made.status().words == "observes this load for 1 s more"
    assert made.check(seen(rows=500), 30.0) == [StartSearch(0.0)]
    assert made.check(seen(rows=600), 40.0) == []


def test_what_is_better_is_proposed_and_each_step_is_told() -> None:
    made = proposed()
    status = made.status()

    assert kinds(made) == ["searches", "found", "shadows", "proposes"]
    assert (status.stage, status.proposal) == ("observing", "kv:x:a=4")
    assert ([step.number for step in status.steps], made.check(seen(), 300.0)) == ([1, 2, 3, 4], [])
    assert "looks again in 3500 s" in made.status().words
    assert made.check(seen(), 3800.0) == [StartSearch(0.0)]


def test_another_load_withdraws_the_proposal_and_is_searched_anew() -> None:
    made = proposed()

    assert (made.check(seen(OTHER), 400.0), made.check(seen(OTHER), 410.0)) == ([], [])

    assert (kinds(made)[-1], made.since_s) == ("drifted", 410.0)
    assert "output tokens 100 -> 600" in made.status().words
    assert (made.status().proposal, made.check(seen(OTHER, rows=600), 439.0)) == ("", [])
    assert made.check(seen(OTHER, rows=600), 440.0) == [StartSearch(410.0)]


@pytest.mark.parametrize(("make", "act"), [(searching, GiveUp), (shadowing, StopShadow)])
def test_what_is_under_way_ends_when_the_load_changes(make: object, act: type[Act]) -> None:
    made = make()  # type: ignore[operator]
    made.check(seen(OTHER), 300.0)

    assert [type(one) for one in made.check(seen(OTHER), 301.0)] == [act]
    assert (made.stage, made.candidate) == ("observing", None)


@pytest.mark.parametrize(
    ("make", "acts"),
    [(tuner, []), (searching, [GiveUp]), (shadowing, [StopShadow])],
)
def test_one_that_does_not_lead_stands_aside(make: object, acts: list[type[Act]]) -> None:
    made = make()  # type: ignore[operator]
    aside = msgspec.structs.replace(seen(), leads=False)

    assert ([type(one) for one in made.check(aside, 300.0)], made.check(aside, 301.0)) == (acts, [])
    assert (made.stage, made.status().words) == (
        "following",
        "another replica of the bucket tunes",
    )
    assert (kinds(made).count("waits"), made.check(seen(rows=0), 302.0)) == (1, [])
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

    assert (made.found(found, 110.0), kinds(made)[-1]) == ([], kind)
    assert words in made.status().words
    assert made.check(seen(), again_s - 1.0) == []
    assert made.check(seen(), again_s) == [StartSearch(0.0)]


def test_a_shadow_is_looked_at_for_long_enough() -> None:
    made = shadowing()
    few = msgspec.structs.replace(SHADOWED, decisions=199)

    for now, report in ((120.0, None), (180.0, few), (169.0, SHADOWED)):
        assert (made.check(seen(shadow=report), now), made.stage) == ([], "shadowing")
    assert made.check(seen(shadow=few), 710.0) == [StopShadow()]
    assert "only 199 decisions" in made.status().words


def test_a_shadow_that_would_do_harm_is_not_tried() -> None:
    made = shadowing()
    slow = msgspec.structs.replace(SHADOWED, would_be_wait_ms=90_000.0)

    assert (made.check(seen(shadow=slow), 200.0), kinds(made)[-1]) == ([StopShadow()], "dropped")
    made.check(seen(), 900.0)
    assert made.found(result(), 910.0) == []
    assert "which its shadow spoke against" in made.status().words
    assert made.check(seen(), 8000.0) == [StartSearch(0.0)]
    assert made.found(result(), 8010.0) == [StartShadow(BETTER)]


LOOKS = st.tuples(
    st.floats(0.0, 2000.0),
    st.sampled_from([LOAD, OTHER, None]),
    st.sampled_from([True, True, True, False]),
    st.sampled_from(["", "", "", "busy"]),
    st.integers(0, 2000),
    st.sampled_from([None, SHADOWED]),
    st.sampled_from(["", "found", "nothing", "failed"]),
)


UNDER_WAY: dict[type[Act], tuple[tuple[str, ...], str]] = {
    StartSearch: (("",), "searching"),
    StartShadow: (("", "searching"), "shadowing"),
    StopShadow: (("shadowing",), ""),
    GiveUp: (("searching",), ""),
}
"""What may be under way before an act, and what is after it."""


def tell(made: Tuner, event: object, now: float) -> list[Act]:
    match event:
        case "found":
            return made.found(result(), now)
        case "nothing":
            return made.found(result(held_out=1.0), now)
        case "failed":
            return made.search_failed("why", now)
        case _:
            return []


@given(st.lists(LOOKS, max_size=80))
def test_whatever_happens_it_does_one_thing_at_a_time(looks: list[tuple[object, ...]]) -> None:
    """A naive book of what is under way: nothing begins twice, all that begins ends."""
    made, now, under_way = tuner(), 0.0, ""
    for gap, character, leads, obstacle, rows, shadow, event in looks:
        now += gap  # type: ignore[operator]
        check = Seen(leads, obstacle, rows, character, shadow, 1.0)  # type: ignore[arg-type]
        acts: list[Act] = made.check(check, now)
        acts += tell(made, event, now)
        for act in acts:
            before, after = UNDER_WAY[type(act)]
            assert under_way in before
            under_way = after
        if made.stage not in ("searching", "shadowing"):
            under_way = ""
        assert under_way in ("", made.stage)
        assert len(made.status().steps) <= MAX_STEPS
