"""Pauses learned: by hand, against sorted samples, and held out on real sessions."""

from math import inf, log, nan
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.programs.pauses import MOST_S, PRIORS, PUBLISHED_S, PauseModel, PauseOptions
from kvmesh.core.programs.turn import Client, Stop

FIXTURE = Path(__file__).parents[3] / "fixtures" / "traces" / "claude_code_pauses.txt"
"""One session of Claude Code a line, a word for each pause: t after a tool call, e after the end of
an answer, u after neither, then seconds. Of github.com/callanjfox/kv-cache-tester, Apache-2.0.
"""

STOPS: dict[str, Stop] = {"t": "tool", "e": "end", "u": ""}
BUCKET = 10 ** (1 / 8)
"""How far a quantile read of a histogram may be from the sample's, as a factor."""

NO_PULL = PauseOptions(pull=1e-9)
CLIENT: Client = "claude-code"

Pauses = list[tuple[Stop, float]]


def sessions() -> list[Pauses]:
    lines = FIXTURE.read_text().splitlines()
    return [[(STOPS[word[0]], float(word[1:])) for word in line.split()] for line in lines]


@pytest.mark.parametrize("stop", list(PUBLISHED_S))
def test_what_was_never_seen_takes_as_long_as_was_published(stop: Stop) -> None:
    p50_s, p90_s = PUBLISHED_S[stop]

    pause = PauseModel().expect(CLIENT, stop, "Bash", 0.0)

    assert pause.p50_s == pytest.approx(p50_s, rel=0.1)
    assert pause.p90_s == pytest.approx(p90_s, rel=0.1)
    assert pause.samples == 0
    assert sum(PRIORS[stop]) == pytest.approx(1.0)


def test_old_pauses_count_for_less() -> None:
    model = PauseModel(PauseOptions(half_life_s=3600.0, pull=1.0))
    for _ in range(100):
        model.learn(CLIENT, "tool", "", 1.0, 0.0)
    before = model.expect(CLIENT, "tool", "", 0.0)

    for _ in range(100):
        model.learn(CLIENT, "tool", "", 1000.0, 10 * 3600.0)

    after = model.expect(CLIENT, "tool", "", 0.0)
    assert (before.p50_s < 2.0, after.p50_s > 700.0, after.samples) == (True, True, 100)


def test_a_change_shows_however_much_was_seen_before() -> None:
    model = PauseModel(PauseOptions(most_samples=100.0))
    for _ in range(10_000):
        model.learn(CLIENT, "tool", "", 1.0, 0.0)

    for _ in range(300):
        model.learn(CLIENT, "tool", "", 1000.0, 0.0)

    pause = model.expect(CLIENT, "tool", "", 0.0)
    assert pause.p50_s > 700.0
    assert pause.samples <= 100


@pytest.mark.parametrize("odd", [-1.0, nan, -inf])
def test_what_is_no_time_counts_for_nothing(odd: float) -> None:
    model = PauseModel()

    model.learn(CLIENT, "tool", "Bash", odd, 0.0)

    assert model.expect(CLIENT, "tool", "Bash", 0.0).samples == 0
    assert model.expect(CLIENT, "tool", "", odd) == model.expect(CLIENT, "tool", "", 0.0)


def test_tools_that_are_made_up_push_out_no_tool_that_is_used() -> None:
    model = PauseModel(PauseOptions(max_tools=3))
    for tool in ("Bash", "Read"):
        for _ in range(5):
            model.learn(CLIENT, "tool", tool, 3.0, 0.0)

    for at in range(1000):
        model.learn(CLIENT, "tool", f"made up {at}", 1e6, 0.0)

    assert (len(model), model.expect(CLIENT, "tool", "Bash", 0.0).samples) == (3, 5)
    assert model.expect(CLIENT, "tool", "Read", 0.0).samples == 5
    assert model.expect(CLIENT, "tool", "made up 999", 0.0).samples == 1


def test_where_all_tools_are_used_a_newcomer_waits_for_a_place() -> None:
    model = PauseModel(PauseOptions(max_tools=1))
    for tool in ("Bash", "Bash", "Read", "Read"):
        model.learn(CLIENT, "tool", tool, 3.0, 0.0)

    assert model.expect(CLIENT, "tool", "Bash", 0.0).samples == 2
    assert model.expect(CLIENT, "tool", "Read", 0.0).samples == 4


def test_a_tool_that_comes_anew_is_not_taken_for_what_was_known_of_it() -> None:
    model = PauseModel(PauseOptions(max_tools=1))
    model.learn(CLIENT, "tool", "Bash", 3.0, 0.0)
    model.expect(CLIENT, "tool", "Bash", 0.0)

    model.learn(CLIENT, "tool", "Read", 3.0, 0.0)

    assert model.expect(CLIENT, "tool", "Read", 0.0).samples == 1


times = st.floats(0.05, MOST_S / 2)


@given(st.lists(times, min_size=1, max_size=80), st.just(0.0) | times)
def test_quantiles_are_those_of_the_samples(pauses: list[float], elapsed_s: float) -> None:
    model = PauseModel(NO_PULL)
    for one in pauses:
        model.learn("", "tool", "", one, 0.0)
    longer = sorted(one for one in pauses if one > elapsed_s * BUCKET)
    if not longer or len(longer) < sum(one > elapsed_s / BUCKET for one in pauses):
        return  # which of a bucket's samples are over is not known

    pause = model.expect("", "tool", "", elapsed_s)

    for reported, share in ((pause.p50_s, 0.5), (pause.p90_s, 0.9)):
        # The quantile of few samples is any of two neighbours, each within its bucket.
        at = share * len(longer)
        low = longer[max(0, int(at - 1e-6) - (at == int(at)))]
        high = longer[min(len(longer) - 1, int(at + 1e-6))]
        assert low / BUCKET**1.01 <= reported + elapsed_s <= high * BUCKET**1.01


@given(
    st.lists(st.tuples(st.sampled_from(["tool", "end"]), times), max_size=30),
    st.floats(0, 2 * MOST_S),
)
def test_what_is_expected_is_in_order(pauses: list[tuple[Stop, float]], elapsed_s: float) -> None:
    model = PauseModel()
    for stop, one in pauses:
        model.learn("codex", stop, "f", one, 0.0)

    pause = model.expect("codex", "tool", "f", elapsed_s)

    assert 0.0 <= pause.p50_s <= pause.p90_s <= MOST_S * BUCKET


def pinball(actual_s: float, reported_s: float, share: float) -> float:
    """Return the loss of a quantile on the logarithm of times, below a second as one second."""
    over = log(max(1.0, actual_s)) - log(max(1.0, reported_s))
    return max(share * over, (share - 1.0) * over)


@pytest.mark.parametrize("elapsed_s", [0.0, 30.0, 300.0])
@pytest.mark.parametrize("seed", range(3))
def test_real_pauses_held_out_are_foretold_better_than_by_one_quantile_for_all(
    seed: int, elapsed_s: float
) -> None:
    known = sessions()
    Random(seed).shuffle(known)
    half = len(known) // 2
    model, before = PauseModel(), list[float]()
    for session in known[:half]:
        for stop, pause_s in session:
            model.learn(CLIENT, stop, "", pause_s, 0.0)
            before.append(pause_s)
    plain = [max(0.0, sorted(before)[len(before) * share // 10] - elapsed_s) for share in (5, 9)]

    losses, plainly, under = [0.0, 0.0], [0.0, 0.0], {"tool": [0, 0, 0], "end": [0, 0, 0]}
    for stop, pause_s in (one for session in known[half:] for one in session):
        if pause_s <= elapsed_s:
            continue
        left_s = pause_s - elapsed_s
        reported = model.expect(CLIENT, stop, "", elapsed_s)
        for at, share in enumerate((0.5, 0.9)):
            losses[at] += pinball(left_s, reported[at], share)
            plainly[at] += pinball(left_s, plain[at], share)
            under.get(stop, [0, 0, 0])[at] += left_s <= reported[at]
        under.get(stop, [0, 0, 0])[2] += 1

    assert losses[0] < 0.97 * plainly[0]
    assert losses[1] < 0.95 * plainly[1]
    for p50, p90, count in under.values():
        assert 0.25 < p50 / count < 0.75
        assert 0.7 < p90 / count < 0.98
