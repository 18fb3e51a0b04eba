"""Limits of a key at two replicas that hear each other at once, against one naive bucket."""

from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.admission.usage import Consumer, UsageSums
from kvmesh.core.admission.usage_limits import Limits, Ticket, UsageLimits
from kvmesh.errors import RequestError

NOON: Final = 1_764_028_800.0 + 12 * 3600
ANN: Final = Consumer("", "ann")
PER_MINUTE: Final = 600.0

STEPS: Final = st.lists(
    st.tuples(
        st.sampled_from(("ask", "ask", "end", "wait")),
        st.integers(0, 1),
        st.integers(0, 3000),
        st.sampled_from((0.0, 0.5, 20.0, 60.0, 4000.0)),
    ),
    max_size=40,
)


class Naive:
    """What is left of one bucket for everybody."""

    def __init__(self) -> None:
        self.left, self.at_s = PER_MINUTE, 0.0

    def add(self, amount: float, now: float) -> None:
        came = (now - self.at_s) * PER_MINUTE / 60.0
        self.left = min(PER_MINUTE, min(PER_MINUTE, self.left + came) + amount)
        self.at_s = now


def made(epoch: int) -> UsageLimits:
    one = UsageLimits(epoch)
    one.replace({"key:ann": Limits(tokens_per_minute=PER_MINUTE)}, 0.0)
    return one


@given(steps=STEPS)
def test_replicas_admit_what_one_bucket_for_all_would(
    steps: list[tuple[str, int, int, float]],
) -> None:
    naive, replicas, now = Naive(), (made(1), made(2)), 0.0
    tell_each_other(replicas, now)
    under_way: list[tuple[UsageLimits, Ticket]] = []

    for what, at, amount, passed_s in steps:
        limits = replicas[at]
        (account,) = limits.of("ann", "")
        if what == "wait":
            now += passed_s
        elif what == "ask":
            expected = account.expected(amount)
            naive.add(0.0, now)
            ticket = ask(limits, amount, now)
            assert (ticket is not None) == (naive.left >= expected)
            if ticket is not None:
                naive.add(-expected, now)
                under_way.append((limits, ticket))
        elif under_way:
            limits, ticket = under_way.pop(amount % len(under_way))
            limits.end(ticket)
            taken = limits.take_ended()
            limits.used(ANN, UsageSums(1, 0, amount, 0, amount // 7), now, NOON)
            limits.settle(taken, now)
            naive.add(-amount - amount // 7, now)
            naive.add(sum(tokens for _, tokens, _ in taken), now)
        tell_each_other(replicas, now)
        for one in replicas:
            (account,) = one.of("ann", "")
            bucket = account.buckets["tokens"]
            bucket.fill(now)
            naive.add(0.0, now)
            assert abs(bucket.left - naive.left) < 1e-6 * PER_MINUTE


def ask(limits: UsageLimits, body_bytes: int, now: float) -> Ticket | None:
    try:
        return limits.admit(limits.of("ann", ""), body_bytes, now, NOON)
    except RequestError:
        return None


def tell_each_other(replicas: tuple[UsageLimits, UsageLimits], now: float) -> None:
    while any(one.has_news() for one in replicas):
        for one, other in (replicas, replicas[::-1]):
            if (message := one.publish()) is not None:
                assert other.hear(f"r{replicas.index(one)}", message, now) == ""
