from typing import get_args

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvmesh.core.members.health import Answer, Health
from kvmesh.core.members.health_record import Stage
from kvmesh.core.members.membership import Change, ChangeKind, Membership
from kvmesh.core.members.outcomes import SERVED, UNKNOWN, Attempt, failed_attempt, status_attempt

DEAD_AFTER_S = 3.5
BACKOFF_S = 1.0
MAX_BACKOFF_S = 6.0
FOREVER = float("inf")
ASK_AFTER_S = 2.1
GRACE_S = 1.5

names = st.sampled_from(["a", "b", "c", "d"])
requests = st.sampled_from(["", "r1", "r2"])
attempts = st.sampled_from(
    [
        SERVED,
        UNKNOWN,
        failed_attempt("cut"),
        failed_attempt("refused"),
        status_attempt(500),
        status_attempt(429, retry_after_s=2.0),
    ]
)


class NaiveMember:
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.note_alive = -FOREVER
        self.expires = FOREVER
        self.quiet = FOREVER
        self.static = False
        self.ready = True
        self.draining = False
        self.silent = False
        self.refused = False


class MembershipAgainstModel(RuleBasedStateMachine):
    """The model looks at everybody anew each time; the real one remembers its last answer.

    Who is left out for what became of requests is for a second `Health` to say, told the same.
    Half of the runs have somebody who asks the silent.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 50.0
        self.real = Membership(
            dead_after_s=DEAD_AFTER_S, backoff_s=BACKOFF_S, max_backoff_s=MAX_BACKOFF_S
        )
        self.health = Health(backoff_s=BACKOFF_S, max_backoff_s=MAX_BACKOFF_S)
        self.model: dict[str, NaiveMember] = {}

    @initialize(asks=st.booleans())
    def begin(self, asks: bool) -> None:
        self.real.health.asks = self.health.asks = asks

    @rule(pause=st.sampled_from([0.0, 0.25, 1.0, 2.0, 3.5, 7.0]))
    def wait(self, pause: float) -> None:
        self.now += pause

    @rule(name=names, epoch=st.integers(1, 3), ready=st.booleans(), draining=st.booleans())
    def observe(self, name: str, epoch: int, ready: bool, draining: bool) -> None:
        change = self.real.observe(name, epoch, self.now, ready=ready, draining=draining)

        assert change == self._observe(name, epoch, ready, draining)

    @rule(name=names, epoch=st.integers(1, 3))
    def add(self, name: str, epoch: int) -> None:
        change = self.real.add(name, self.now, epoch=epoch)

        assert change == self._observe(name, epoch, ready=True, draining=False)
        one = self.model[name]
        one.note_alive, one.static, one.silent, one.refused = self.now, True, False, False
        one.expires = one.quiet = FOREVER

    def _observe(self, name: str, epoch: int, ready: bool, draining: bool) -> Change | None:
        one = self.model.get(name)
        kind = None
        if one is None:
            one = self.model[name] = NaiveMember(epoch)
            kind = ChangeKind.JOINED
        elif epoch < one.epoch and not one.silent:
            return None
        elif epoch != one.epoch:
            one.epoch = epoch
            self.health.forget(name)
            kind = ChangeKind.RESTARTED
        elif (one.ready, one.draining) != (ready, draining):
            kind = ChangeKind.UPDATED
        elif one.silent:
            kind = ChangeKind.HEARD
        one.ready, one.draining = ready, draining
        one.note_alive, one.silent, one.refused = self.now, False, False
        if not one.static:
            one.expires = one.quiet = self.now + DEAD_AFTER_S
        return Change(kind, name, epoch) if kind else None

    @rule(name=names)
    def remove(self, name: str) -> None:
        one = self.model.pop(name, None)
        self.health.forget(name)

        assert self.real.remove(name) == (Change(ChangeKind.LEFT, name, one.epoch) if one else None)

    @rule()
    def somebody_asks(self) -> None:
        self.real.signs.asked = True

    @rule()
    def grant(self) -> None:
        self.real.signs.grant(self.now)

        for one in self.model.values():
            one.expires = max(one.expires, self.now + DEAD_AFTER_S)
            one.quiet = max(one.quiet, self.now + GRACE_S)

    @rule()
    def expire(self) -> None:
        changes: list[Change] = []
        for name, one in sorted(self.model.items()):
            if one.expires <= self.now:
                changes.append(Change(ChangeKind.LEFT, name, one.epoch))
            elif one.quiet <= self.now and self.real.signs.asked and not one.silent:
                changes.append(Change(ChangeKind.SILENT, name, one.epoch))
                one.silent = True

        assert self.real.expire(self.now) == changes
        for change in changes:
            if change.kind is ChangeKind.LEFT:
                del self.model[change.member]
                self.health.forget(change.member)

    @rule(name=names)
    def answer_http(self, name: str) -> None:
        self.real.answered_http(name, self.now)

        one = self.model.get(name)
        if one is not None and not self._is_received(one):
            one.refused, one.ready = False, True
            one.expires = max(one.expires, self.now + DEAD_AFTER_S)

    @rule(name=names)
    def refuse(self, name: str) -> None:
        self.real.signs.refused(name, self.now)

        one = self.model.get(name)
        if one is not None and not self._is_received(one):
            if one.refused:
                one.expires = min(one.expires, self.now)
            one.refused = True

    @rule(name=names, epoch=st.integers(1, 3))
    def come_back(self, name: str, epoch: int) -> None:
        if name in self.model:
            return

        assert self.real.readmit(name, epoch, self.now) == Change(ChangeKind.JOINED, name, epoch)

        one = self.model[name] = NaiveMember(epoch)
        one.note_alive, one.silent = self.now - DEAD_AFTER_S, True
        one.quiet, one.expires = self.now, self.now + DEAD_AFTER_S

    def _is_received(self, one: NaiveMember) -> bool:
        return one.static or self.now < one.note_alive + ASK_AFTER_S

    @rule(name=names, attempt=attempts, request=requests)
    def note(self, name: str, attempt: Attempt, request: str) -> None:
        before = self.health.stage(name)
        change = self.real.note(name, attempt, self.now, request)

        if name in self.model:
            self.health.note(name, attempt, self.now, request)
        assert change == self._turn(name, before)

    @rule(request=requests)
    def forgive(self, request: str) -> None:
        assert self.real.forgive(request, self.now) == self.health.forgive(request, self.now)

    @rule(name=names, answer=st.sampled_from(get_args(Answer)))
    def answer(self, name: str, answer: Answer) -> None:
        before = self.health.stage(name)
        change = self.real.answered(name, answer, self.now)

        self.health.answered(name, answer, self.now)
        assert change == self._turn(name, before)

    def _turn(self, name: str, before: Stage) -> Change | None:
        """Return the change that goes with a member that is in now, or no longer."""
        after = self.health.stage(name)
        if name not in self.model or (before is Stage.IN) == (after is Stage.IN):
            return None
        kind = ChangeKind.RECOVERED if after is Stage.IN else ChangeKind.SUSPECTED
        return Change(kind, name, self.model[name].epoch)

    @rule(name=names)
    def begin_answer(self, name: str) -> None:
        self.real.health.began(name, self.now)

        self.health.began(name, self.now)

    @rule(name=names, request=requests)
    def choose(self, name: str, request: str) -> None:
        self.real.health.chosen(name, self.now, request)

        self.health.chosen(name, self.now, request)

    @invariant()
    def exactly_the_right_members_are_usable(self) -> None:
        there = [name for name, one in sorted(self.model.items()) if one.ready and not one.draining]
        usable = tuple(self.health.admit(there, self.now)[0])
        assert self.real.usable(self.now) == usable
        assert self.real.members() == tuple(sorted(self.model))
        for name in "abcd":
            assert (self.real.why_not(name, self.now) is None) == (name in usable)
            assert (name in self.real) == (name in self.model)
        for row in self.real.view(self.now):
            one = self.model[row.member]
            assert (row.epoch, row.ready, row.draining) == (one.epoch, one.ready, one.draining)
            assert (row.silent, row.last_sign_s) == (one.silent, self.now - one.note_alive)
            assert (row.failures, row.attempts) == self.health.recent(row.member)
            assert (row.stage, row.usable) == (
                self.health.standing(row.member, self.now),
                row.member in usable,
            )
            assert row.retry_in_s == self.health.retry_in_s(row.member, self.now)

    @invariant()
    def nobody_is_asked_who_is_heard_or_leaves(self) -> None:
        for name in self.real.due(self.now):
            one = self.model[name]
            assert self.real.signs.asked
            assert not self._is_received(one)
            assert not one.draining


TestMembershipAgainstModel = MembershipAgainstModel.TestCase
TestMembershipAgainstModel.settings = settings(max_examples=60)
