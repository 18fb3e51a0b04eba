"""The health of members against a model written from the rules, not from the code."""

import copy
from collections import Counter
from math import inf, nan
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvmesh.core.members.health import Answer, Health
from kvmesh.core.members.health_record import Stage
from kvmesh.core.members.noted_failures import FAILURES_REMEMBERED, REQUESTS_REMEMBERED
from kvmesh.core.members.outcomes import Attempt, Verdict, failed_attempt, status_attempt

NAMES = ("a", "b", "c", "d", "e", "f", "g")
BACKOFF_S, MAX_BACKOFF_S = 1.0, 6.0
CLOSE = 1e-6
AGED_LATE = 1.0 - 0.5**0.1
"""Of an outcome, for a second that it was not let age."""

names = st.sampled_from(NAMES)
answers = st.sampled_from(get_args(Answer))
requests = st.sampled_from(["", "r1", "r2", "r3", "r4"])
failures = st.sampled_from(
    [
        failed_attempt("reset", 0.3),
        failed_attempt("cut", 2.0),
        failed_attempt("timeout", 30.0),
        failed_attempt("refused"),
        status_attempt(500, 0.01),
        status_attempt(502, 0.01),
    ]
)
others = st.sampled_from(
    [Attempt(Verdict.UNKNOWN), Attempt(Verdict.PROMPT, "reset"), status_attempt(404)]
)
ENDINGS = {"reset", "truncated", "malformed", "timeout", "hung", "cut"}
WEIGHTS = {"cut": 1.5, "502": 0.75, "503": 0.75, "504": 0.75}


class NaiveFailure:
    def __init__(self, member: "NaiveMember", request: str, before: tuple[Stage, float]) -> None:
        self.member = member
        self.request = request
        self.before = before


class NaiveMember:
    """Keeps every outcome for ever and adds them up whenever somebody asks."""

    def __init__(self, now: float) -> None:
        self.outcomes: list[tuple[float, float, NaiveFailure | None]] = []
        self.streak: list[NaiveFailure] = []
        self.stage = Stage.IN
        self.until = 0.0
        self.in_since = now
        self.ejections = 0
        self.trial: str | None = None
        self.rest_until = 0.0
        self.first_failure: float | None = None
        self.single = True
        self.returns = False
        """It was not there, and is not trusted again yet."""

    def sums(self, now: float) -> tuple[float, float]:
        """Return attempts and failures, an outcome of 10 s ago counting half."""
        kept = [(0.5 ** ((now - at) / 10.0), weight) for at, weight, _ in self.outcomes]
        return sum(keep for keep, _ in kept), sum(keep * weight for keep, weight in kept)

    def let_in(self, now: float) -> None:
        if self.stage is not Stage.IN:
            self.stage, self.in_since, self.trial = Stage.IN, now, None
        self.returns = False

    def go_down(self) -> None:
        self.stage, self.returns = Stage.DOWN, True

    def pass_time(self, now: float, unasked_s: float) -> None:
        if self.stage in (Stage.SUSPECT, Stage.EJECTED) and now >= self.until + unasked_s:
            self.stage, self.until, self.trial = Stage.TRICKLE, 0.0, None
        if self.stage is Stage.TRICKLE and self.trial is not None and now >= self.until:
            self.trial = None

    def is_out(self, now: float) -> bool:
        if self.rest_until > now or self.stage in (Stage.SUSPECT, Stage.EJECTED):
            return True
        return self.stage is Stage.TRICKLE and self.trial is not None


class HealthAgainstModel(RuleBasedStateMachine):
    """One fleet's outcomes, told to both."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.real = Health(backoff_s=BACKOFF_S, max_backoff_s=MAX_BACKOFF_S)
        self.asks = False
        self.unasked_s = 0.0
        self.present = list(NAMES)
        self.model: dict[str, NaiveMember] = {}
        self.noted: list[NaiveFailure] = []
        self.failed = Counter[str]()

    @initialize(asks=st.booleans(), fleet=st.integers(1, len(NAMES)))
    def begin(self, asks: bool, fleet: int) -> None:
        self.real.asks = self.asks = asks
        self.unasked_s = 2.0 if asks else 0.0
        self.present = list(NAMES[:fleet])

    def member(self, name: str) -> NaiveMember:
        """Return what is known; a member exists from its first outcome."""
        if name not in self.model:
            self.model[name] = NaiveMember(self.now)
        return self.model[name]

    @rule(pause=st.sampled_from([0.0, 0.25, 1.0, 2.0, 3.5, 10.0, 31.0]))
    def wait(self, pause: float) -> None:
        self.now += pause
        self.real.admit(self.present, self.now)

    @rule(name=names, request=requests)
    def serve(self, name: str, request: str) -> None:
        if not self.real.served(name, self.now):
            self.real.note(name, Attempt(Verdict.SERVED), self.now, request)

        one = self.member(name)
        one.outcomes.append((self.now, 0.0, None))
        one.streak.clear()
        self.end_trial(one, request)
        if one.stage is not Stage.DOWN:
            one.let_in(self.now)

    @rule(name=names, attempt=failures, request=requests, times=st.integers(1, 3))
    def fail(self, name: str, attempt: Attempt, request: str, times: int) -> None:
        for _ in range(times):
            self.fail_once(name, attempt, request)

    def fail_once(self, name: str, attempt: Attempt, request: str) -> None:
        self.real.note(name, attempt, self.now, request)

        one = self.member(name)
        failure = NaiveFailure(one, request, (one.stage, one.until))
        one.outcomes.append((self.now, WEIGHTS.get(attempt.kind, 1.0), failure))
        one.streak.append(failure)
        one.single = one.first_failure is None
        one.first_failure = one.first_failure or self.now
        if self.is_remembered(request):
            self.noted.append(failure)
        self.end_trial(one, request)
        self.judge(name, one, attempt.kind)

    def is_remembered(self, request: str) -> bool:
        """Count a failure of a request; return whether it can be taken back."""
        self.failed[request] += 1
        return bool(request) and self.failed[request] <= FAILURES_REMEMBERED

    def judge(self, name: str, one: NaiveMember, kind: str) -> None:
        if one.stage is Stage.TRICKLE:
            self.eject(one)
        elif one.stage is Stage.IN:
            if kind == "refused" and self.asks:
                one.until = 0.0
                one.go_down()
            elif kind in ENDINGS and self.asks and len(one.streak) < 2:
                one.stage, one.until = Stage.SUSPECT, self.now
            elif kind in ENDINGS or kind == "refused" or len(one.streak) >= 3:
                self.eject(one)
            elif (often := self.fails_often(one)) is None:
                if self.real.stage(name) is Stage.EJECTED:
                    self.eject(one)
            elif often:
                self.eject(one)

    def fails_often(self, one: NaiveMember) -> bool | None:
        """Return whether half of at least six failed, and twice the others' share; None if it is a
        matter of how often successes are let age.
        """
        attempts, failed = one.sums(self.now)
        sums = [other.sums(self.now) for other in self.model.values() if other is not one]
        rate = sum(bad for _, bad in sums) / (sum(all_ for all_, _ in sums) + 2.0)
        margins = (attempts - 6.0, failed - 0.5 * attempts, failed - 2.0 * rate * attempts)
        close = CLOSE + AGED_LATE * (attempts + failed)
        if min(margins) > close:
            return True
        return False if min(margins) < -close else None

    def eject(self, one: NaiveMember) -> None:
        if one.stage is Stage.IN and self.now - one.in_since > 30.0:
            one.ejections = 0
        one.stage, one.trial = Stage.EJECTED, None
        one.until = self.now + min(BACKOFF_S * 2**one.ejections, MAX_BACKOFF_S)
        one.ejections += 1

    def end_trial(self, one: NaiveMember, request: str) -> None:
        if one.trial == request:
            one.trial = None

    @rule(name=names, reported=st.sampled_from([0.0, 0.5, 4.0, 1e9]), request=requests)
    def overload(self, name: str, reported: float, request: str) -> None:
        self.real.note(name, status_attempt(429, retry_after_s=reported), self.now, request)

        one = self.member(name)
        self.end_trial(one, request)
        one.rest_until = max(one.rest_until, self.now + min(reported or 1.0, 30.0))
        self.is_remembered(request)

    @rule(name=names, attempt=others, request=requests)
    def end_without_verdict(self, name: str, attempt: Attempt, request: str) -> None:
        self.real.note(name, attempt, self.now, request)

        self.end_trial(self.member(name), request)

    @rule(name=names)
    def begin_answer(self, name: str) -> None:
        self.real.began(name, self.now)

        one = self.model.get(name)
        if one is not None and one.stage not in (Stage.IN, Stage.DOWN):
            one.streak.clear()
            one.let_in(self.now)

    @rule(name=names, answer=answers)
    def answer(self, name: str, answer: Answer) -> None:
        self.real.answered(name, answer, self.now)

        one = self.model.get(name)
        if one is None or one.stage in (Stage.IN, Stage.TRICKLE):
            return
        one.single = False
        if answer in {"down", "unready"}:
            one.go_down()
        elif answer == "slow":
            one.until = max(one.until, self.now)
            one.stage = Stage.EJECTED
        elif one.stage is Stage.SUSPECT and len(one.streak) <= 1:
            one.let_in(self.now)
        elif one.stage is not Stage.EJECTED or one.until <= self.now:
            one.stage, one.until, one.trial = Stage.TRICKLE, 0.0, None

    @precondition(lambda self: self.admitted())
    @rule(data=st.data(), request=requests)
    def choose(self, data: st.DataObject, request: str) -> None:
        name = data.draw(st.sampled_from(self.admitted()))
        self.real.chosen(name, self.now, request)

        one = self.model.get(name)
        if one is not None and one.stage is Stage.TRICKLE and one.trial is None:
            one.trial, one.until = request, self.now + 30.0

    @rule(request=requests)
    def forgive(self, request: str) -> None:
        taken = self.real.forgive(request, self.now)

        mine = [one for one in self.noted if one.request == request]
        self.noted = [one for one in self.noted if one.request != request]
        current = {id(one): name for name, one in self.model.items()}
        for failure in mine:
            one = failure.member
            one.outcomes = [known for known in one.outcomes if known[2] is not failure]
            one.streak = [known for known in one.streak if known is not failure]
            if id(one) in current:
                self.check_forgiven(current[id(one)], one)
        assert len(taken) == (
            min(self.failed.pop(request, 0), FAILURES_REMEMBERED) if request else 0
        )
        for name in taken:
            if name in self.model:
                rest_until = self.real._records[name].cooling_s
                assert rest_until <= max(self.model[name].rest_until, self.now)
                self.model[name].rest_until = rest_until

    def check_forgiven(self, name: str, one: NaiveMember) -> None:
        """Hold what forgiveness must bring about; where it may be one or other, believe it."""
        stage = self.real.stage(name)
        if not one.streak and not one.returns:
            assert stage is Stage.IN
        record = self.real._records[name]
        one.stage, one.until, one.ejections = stage, record.until_s, record.ejections
        one.in_since = record.in_since_s
        one.trial = record.trial if record.busy else None
        one.returns = one.returns and stage is not Stage.IN

    @rule(name=names)
    def restart(self, name: str) -> None:
        self.real.forget(name)

        self.model.pop(name, None)

    def admitted(self) -> list[str]:
        for name in self.model.keys() & set(self.present):
            self.model[name].pass_time(self.now, self.unasked_s)
        return self.real.admit(self.present, self.now)[0]

    @invariant()
    def everybody_stands_where_the_rules_say(self) -> None:
        admitted = self.admitted()
        assert sorted(admitted) == admitted
        for name, one in self.model.items():
            record = self.real._records[name]
            if name in self.present:
                assert self.real.stage(name) is one.stage, name
            assert record.streak == len(one.streak), name
            assert self.real.is_suspect(name) == bool(one.streak)

    @invariant()
    def a_third_at_most_is_out_for_failed_requests(self) -> None:
        admitted = self.admitted()
        down = {name for name, one in self.model.items() if one.stage is Stage.DOWN}
        there = [name for name in self.present if name not in down]
        out = {name for name in there if name in self.model and self.model[name].is_out(self.now)}
        left_out = set(there) - set(admitted)

        assert not down.intersection(admitted)
        assert left_out <= out
        assert len(left_out) <= (max(1, len(there) // 3) if len(there) > 1 else 0)
        assert not there or admitted
        assert self.real.spared == len(out - left_out)
        if left_out and out - left_out:
            worst = max(self.model[name].stage.value for name in out - left_out)
            assert worst <= min(self.model[name].stage.value for name in left_out)

    @invariant()
    def who_fails_nobody_is_in(self) -> None:
        for name in self.present:
            one = self.model.get(name)
            if one is None or not (one.streak or one.returns or one.rest_until > self.now):
                assert self.real.stage(name) is Stage.IN, name
                assert not self.real.is_left_out(name, self.now), name
                assert self.real.retry_in_s(name, self.now) == 0.0

    @invariant()
    def one_failure_alone_is_over_in_two_seconds(self) -> None:
        for name, one in self.model.items():
            since = one.first_failure
            alone = one.single and since is not None and one.trial is None
            if alone and one.stage is not Stage.DOWN and one.rest_until <= self.now:
                assert since is not None
                record = copy.copy(self.real._records[name])
                assert not record.is_out(max(self.now, since + 2.0), self.unasked_s), name

    @invariant()
    def prices_are_shares_and_finite(self) -> None:
        for name in NAMES:
            share, lost_ms = self.real.price(name, self.now)
            assert 0.0 <= share <= 1.0
            assert 0.0 <= lost_ms < inf
            one = self.model.get(name)
            if one is None or not any(weight for _, weight, _ in one.outcomes):
                assert share <= CLOSE

    @invariant()
    def nothing_is_kept_of_who_is_unknown(self) -> None:
        assert set(self.real._records) == set(self.model)
        assert self.real.out <= set(self.model)
        assert set(self.real.due(self.now)) <= set(self.model)


TestHealthAgainstModel = HealthAgainstModel.TestCase

wild = st.one_of(
    st.sampled_from([nan, inf, -inf, 0.0, -1.0, 1e308, -1e308, 5e-324]),
    st.floats(allow_nan=True, allow_infinity=True),
)
wild_attempts = st.builds(
    Attempt,
    verdict=st.sampled_from(Verdict),
    kind=st.sampled_from(["cut", "reset", "refused", "500", "", "\x00" * 40]),
    lost_s=wild,
    retry_after_s=wild,
)
steps = st.lists(
    st.tuples(names, wild_attempts, wild | st.floats(0.0, 1e4), answers, requests), max_size=30
)


@given(steps, st.booleans())
def test_figures_that_no_clock_shows_break_nothing(
    steps: list[tuple[str, Attempt, float, Answer, str]], asks: bool
) -> None:
    health = Health()
    health.asks = asks

    for name, attempt, now, answer, request in steps:
        health.note(name, attempt, now, request)
        health.chosen(name, now, request)
        health.began(NAMES[0], now)
        health.answered(name, answer, now)
        health.forgive(request, now)
        admitted, _ = health.admit(NAMES, now)
        present = [one for one in NAMES if health.stage(one) is not Stage.DOWN]
        health.due(now)

        assert bool(admitted) == bool(present)
        assert len(present) - len(admitted) <= max(1, len(present) // 3)
        for one in NAMES:
            share, lost_ms = health.price(one, now)
            assert 0.0 <= share <= 1.0
            assert 0.0 <= lost_ms <= 1e9
            assert isinstance(health.words(one, now), str)
            assert health.retry_in_s(one, now) >= 0.0
            health.is_left_out(one, now)


@given(st.integers(0, 300), st.integers(1, 40))
def test_what_may_be_forgiven_stays_bounded(more: int, times: int) -> None:
    health = Health()

    for number in range(REQUESTS_REMEMBERED + more):
        health.note("a", status_attempt(500), 0.0, f"r{number}")
    for _ in range(times):
        health.note("a", status_attempt(500), 0.0, "often")

    assert len(health._noted) == REQUESTS_REMEMBERED
    assert len(health.forgive("often", 0.0)) == min(times, FAILURES_REMEMBERED)
    assert health.forgive("r0", 0.0) == []
