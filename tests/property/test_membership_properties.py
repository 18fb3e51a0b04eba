from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvmesh.core.membership import Change, ChangeKind, Membership

DEAD_AFTER_S = 3.5
BACKOFF_S = 1.0
MAX_BACKOFF_S = 6.0
FOREVER = float("inf")

names = st.sampled_from(["a", "b", "c"])


class NaiveMember:
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.expires = FOREVER
        self.static = False
        self.ready = True
        self.draining = False
        self.failures = 0
        self.out_until = 0.0
        self.probing = False


class MembershipAgainstModel(RuleBasedStateMachine):
    """The model looks at everybody anew each time; the real one remembers its last answer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 50.0
        self.real = Membership(
            dead_after_s=DEAD_AFTER_S, backoff_s=BACKOFF_S, max_backoff_s=MAX_BACKOFF_S
        )
        self.model: dict[str, NaiveMember] = {}
        self.paused = False

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
        self.model[name].static = True
        self.model[name].expires = FOREVER

    def _observe(self, name: str, epoch: int, ready: bool, draining: bool) -> Change | None:
        one = self.model.get(name)
        kind = None
        if one is None:
            one = self.model[name] = NaiveMember(epoch)
            kind = ChangeKind.JOINED
        elif epoch < one.epoch:
            return None
        elif epoch > one.epoch:
            one.epoch, one.failures, one.out_until, one.probing = epoch, 0, 0.0, False
            kind = ChangeKind.RESTARTED
        elif (one.ready, one.draining) != (ready, draining):
            kind = ChangeKind.UPDATED
        one.ready, one.draining = ready, draining
        if not one.static:
            one.expires = self.now + DEAD_AFTER_S
        return Change(kind, name, epoch) if kind else None

    @rule(name=names)
    def remove(self, name: str) -> None:
        one = self.model.pop(name, None)

        assert self.real.remove(name) == (Change(ChangeKind.LEFT, name, one.epoch) if one else None)

    @rule()
    def pause(self) -> None:
        self.real.pause()

        self.paused = True

    @rule()
    def resume(self) -> None:
        self.real.resume(self.now)

        self.paused = False
        for one in self.model.values():
            one.expires = max(one.expires, self.now + DEAD_AFTER_S)

    def _lives(self, one: NaiveMember) -> bool:
        return self.paused or one.expires > self.now

    @rule()
    def expire(self) -> None:
        dead = sorted(name for name, one in self.model.items() if not self._lives(one))

        left = [Change(ChangeKind.LEFT, name, self.model.pop(name).epoch) for name in dead]
        assert self.real.expire(self.now) == left

    @rule(name=names)
    def fail(self, name: str) -> None:
        change = self.real.mark_failed(name, self.now)

        one = self.model.get(name)
        if one is None or (self.now < one.out_until and not one.probing):
            assert change is None
            return
        assert change == Change(ChangeKind.SUSPECTED, name, one.epoch)
        one.failures += 1
        one.probing = False
        one.out_until = self.now + min(BACKOFF_S * 2 ** (one.failures - 1), MAX_BACKOFF_S)

    @rule(name=names)
    def succeed(self, name: str) -> None:
        change = self.real.mark_ok(name)

        one = self.model.get(name)
        if one is None or not one.failures:
            assert change is None
            return
        assert change == Change(ChangeKind.RECOVERED, name, one.epoch)
        one.failures, one.out_until, one.probing = 0, 0.0, False

    @rule(name=names)
    def choose(self, name: str) -> None:
        self.real.mark_chosen(name, self.now)

        one = self.model.get(name)
        if one is not None and one.failures:
            one.out_until = self.now + MAX_BACKOFF_S
            one.probing = True

    @invariant()
    def exactly_the_right_members_are_usable(self) -> None:
        usable = tuple(
            name
            for name, one in sorted(self.model.items())
            if self._lives(one) and one.ready and not one.draining and one.out_until <= self.now
        )
        assert self.real.usable(self.now) == usable
        assert self.real.members() == tuple(sorted(self.model))
        for name in "abc":
            assert (self.real.why_not(name, self.now) is None) == (name in usable)
            assert (name in self.real) == (name in self.model)
        for row in self.real.view(self.now):
            one = self.model[row.member]
            assert (row.epoch, row.ready, row.draining) == (one.epoch, one.ready, one.draining)
            assert (row.failures, row.usable) == (one.failures, row.member in usable)
            assert row.retry_in_s == max(0.0, one.out_until - self.now)


TestMembershipAgainstModel = MembershipAgainstModel.TestCase
