"""Limits of keys and tenants: what is admitted, what is paid, what siblings are told."""

import pytest

from kvmesh.core.admission.shares import MAX_ROWS
from kvmesh.core.admission.sibling_counters import MAX_PEERS
from kvmesh.core.admission.usage import Consumer, UsageBatch, UsageRow, UsageSums
from kvmesh.core.admission.usage_limits import (
    LEARNED,
    MINUTE_S,
    MOST_SHARED,
    TOKENS_PER_BYTE,
    Account,
    Limits,
    UsageLimits,
    duration,
    key_name,
    tenant_name,
)
from kvmesh.errors import RequestError

NOON = 1_764_028_800.0 + 12 * 3600
ANN = Consumer("kitchen", "ann")


def limits(epoch: int = 1, **wanted: Limits) -> UsageLimits:
    made = UsageLimits(epoch)
    made.replace({name.replace("_", ":", 1): one for name, one in wanted.items()}, 0.0)
    return made


class Door:
    """Sends requests of one key and tells what they used."""

    def __init__(self, made: UsageLimits, who: Consumer = ANN) -> None:
        self.limits = made
        self.who = who
        self.accounts = made.of(who.key, who.tenant)

    def ask(self, now: float = 0.0, size: int = 0, unix_s: float = NOON) -> RequestError | None:
        """Send a request and leave it open; return why it was refused."""
        try:
            self.tickets = self.limits.admit(self.accounts, size, now, unix_s)
        except RequestError as error:
            return error
        return None

    def end(self, prompt: int, output: int, now: float = 0.0, unix_s: float = NOON) -> None:
        self.limits.end(self.tickets)
        paid = self.limits.take_ended()
        self.limits.used(self.who, UsageSums(1, 0, prompt, 0, output), now, unix_s)
        self.limits.settle(paid, now)

    def left(self, what: str = "remaining-tokens", now: float = 0.0) -> str:
        lines = self.limits.headers(self.accounts, now).decode().splitlines()
        told = dict(line.removeprefix("x-ratelimit-").split(": ") for line in lines)
        return told.get(what, "")


def test_requests_a_minute_are_a_bucket_that_fills_evenly() -> None:
    door = Door(limits(key_ann=Limits(requests_per_minute=60)))

    assert [door.ask() for _ in range(60)] == [None] * 60
    refused = door.ask()
    assert refused is not None
    assert str(refused) == "key 'ann' has spent its 60 requests a minute: try again in 1s"
    assert (refused.status, refused.code, refused.retry_after_s) == (429, "rate_limit_exceeded", 1)
    assert not refused.final
    assert door.ask(0.9) is not None
    assert door.ask(1.6) is None
    assert door.ask(1.7) is not None
    assert [door.ask(1000.0) is None for _ in range(61)] == [True] * 60 + [False]
    assert door.limits.statistics().refused == {"requests": 4, "tokens": 0, "day": 0}
    assert door.limits.statistics().accounts == 1


def test_a_rate_below_one_a_minute_is_one_at_a_time() -> None:
    door = Door(limits(key_ann=Limits(requests_per_minute=0.5)))

    assert [door.ask(now) is None for now in (0.0, 59.0, 60.0)] == [True, False, True]


def test_a_request_pays_what_it_is_expected_to_take_and_then_what_it_used() -> None:
    assert (TOKENS_PER_BYTE, LEARNED, MINUTE_S, MOST_SHARED) == (0.25, 0.2, 60.0, 8192)
    door = Door(limits(key_ann=Limits(tokens_per_minute=6000)))

    assert door.ask(size=4000) is None
    assert door.left() == "5000"
    door.end(700, 300)
    assert door.left() == "5000"
    assert door.ask(size=4000) is None
    assert door.left() == str(5000 - 60 - round(4000 * (0.25 + 0.2 * (700 / 4000 - 0.25))))
    door.end(100, 0)
    assert door.left() == "4900"


def test_tokens_beyond_the_limit_make_later_requests_wait() -> None:
    door = Door(limits(key_ann=Limits(tokens_per_minute=600)))
    assert door.ask(size=400) is None
    door.end(900, 300)

    refused = door.ask(size=400)

    assert refused is not None
    assert "600 tokens a minute: try again in 1m32s" in str(refused)
    assert refused.retry_after_s == 92
    assert door.left() == "0"
    assert door.ask(now=92.0, size=400) is None


def test_a_request_larger_than_the_limit_waits_for_all_of_it() -> None:
    door = Door(limits(key_ann=Limits(tokens_per_minute=600)))
    assert door.ask(size=40) is None
    door.end(10, 0)

    assert door.ask(size=10**9) is not None
    assert door.ask(now=1.0, size=10**9) is None
    assert door.ask(now=1.0, size=40) is not None


def test_what_has_no_body_pays_no_tokens() -> None:
    door = Door(limits(key_ann=Limits(tokens_per_minute=1, tokens_per_day=1)))
    assert door.ask(size=400) is None

    assert door.ask() is None
    assert door.ask(size=4) is not None


def test_a_request_that_used_nothing_gets_back_what_it_paid() -> None:
    door = Door(limits(key_ann=Limits(tokens_per_minute=600)))
    assert door.ask(size=2000) is None

    door.end(0, 0)

    assert door.left() == "600"
    assert door.limits.take_ended() == []


def test_what_a_long_request_used_is_owed_though_its_bucket_was_full_until_then() -> None:
    door = Door(limits(key_ann=Limits(tokens_per_minute=600)))
    assert door.ask(size=400) is None

    door.end(500, 500, now=3600.0)

    assert door.left(now=3600.0) == "0"
    refused = door.ask(now=3600.0, size=4)
    assert refused is not None
    assert refused.retry_after_s > 30
    assert door.left(now=3600.0 + 30.0) == "0"
    assert door.left(now=3600.0 + 60.0) == "300"
    assert door.left(now=3600.0 + 50.0) == "300"


def test_what_a_sibling_charges_counts_though_nobody_asked_here_for_long() -> None:
    one, other = two(key_ann=Limits(requests_per_minute=10))
    assert [Door(one).ask(now=3600.0) for _ in range(10)] == [None] * 10

    told(one, other, now=3600.0)

    assert Door(other).ask(now=3600.0) is not None


def test_a_budget_is_of_a_day_and_counts_what_is_under_way() -> None:
    door = Door(limits(key_ann=Limits(tokens_per_day=1000)))
    assert door.ask(size=4000) is None
    refused = door.ask(size=4)

    assert refused is not None
    assert "1,000 tokens a day (UTC): try again in 12h0m0s" in str(refused)
    assert (refused.code, refused.final, refused.retry_after_s) == (
        "insufficient_quota",
        True,
        12 * 3600,
    )
    door.end(500, 0)
    assert door.ask(size=4) is None
    door.end(500, 0)
    assert door.ask(size=4) is not None
    assert door.ask(size=4, unix_s=NOON + 86_400) is None
    assert door.left() == ""


def test_what_siblings_and_lives_before_served_counts_of_today_alone() -> None:
    door = Door(limits(tenant_kitchen=Limits(tokens_per_day=1000)))
    row = UsageRow(Consumer("kitchen", "ben"), UsageSums(1, 0, 600, 0, 0))

    door.limits.learn(UsageBatch("x", "b", "r", NOON, NOON - 86_400, (row, row)))
    assert door.ask(size=4) is None
    door.limits.learn(UsageBatch("y", "b", "r", NOON, NOON, (row, row)))
    assert door.ask(size=4) is not None
    door.limits.learn(UsageBatch("z", "b", "r", NOON, NOON - 86_400, (row,)))
    assert door.ask(size=4) is not None


def test_key_and_tenant_are_both_charged_and_headers_tell_of_the_tighter() -> None:
    door = Door(
        limits(
            key_ann=Limits(requests_per_minute=10, tokens_per_minute=1000),
            tenant_kitchen=Limits(requests_per_minute=4),
        )
    )
    assert [one.name for one in door.accounts] == ["key:ann", "tenant:kitchen"]
    assert door.ask(size=40) is None

    assert door.limits.headers(door.accounts, 0.0) == (
        b"x-ratelimit-limit-requests: 4\r\n"
        b"x-ratelimit-remaining-requests: 3\r\n"
        b"x-ratelimit-reset-requests: 15s\r\n"
        b"x-ratelimit-limit-tokens: 1000\r\n"
        b"x-ratelimit-remaining-tokens: 990\r\n"
        b"x-ratelimit-reset-tokens: 600ms\r\n"
    )
    other = Door(door.limits, Consumer("kitchen", "ben"))
    assert [other.ask() is None for _ in range(4)] == [True, True, True, False]
    assert "tenant 'kitchen' has spent" in str(door.ask())


def test_without_counts_of_tokens_requests_alone_are_limited() -> None:
    wanted = Limits(requests_per_minute=1, tokens_per_minute=1, tokens_per_day=1)
    made = UsageLimits(tokens=False)
    made.replace({"key:ann": wanted}, 0.0)
    door = Door(made)

    assert door.ask(size=10**6) is None
    assert "requests a minute" in str(door.ask(size=10**6))


def test_limits_that_stay_keep_what_was_used_and_others_begin_anew() -> None:
    made = limits(key_ann=Limits(tokens_per_minute=600), key_ben=Limits(tokens_per_day=100))
    ann, ben = Door(made), Door(made, Consumer("", "ben"))
    assert ann.ask(size=400) is None
    assert ben.ask(size=4) is None
    ben.end(100, 0)

    made.replace(
        {
            "key:ann": Limits(tokens_per_minute=600),
            "key:ben": Limits(requests_per_minute=5, tokens_per_day=90),
        },
        0.0,
    )

    assert Door(made).left() == "500"
    assert Door(made, Consumer("", "ben")).ask(size=4) is not None
    made.replace({}, 0.0)
    assert made.of("ann", "kitchen") == ()


def two(**wanted: Limits) -> tuple[UsageLimits, UsageLimits]:
    one, other = limits(1, **wanted), limits(2, **wanted)
    told(one, other)
    return one, other


def told(one: UsageLimits, other: UsageLimits, *, again: bool = False, now: float = 0.0) -> None:
    message = one.publish(again=again)
    assert message is not None
    assert other.hear("r0", message, now) == ""


def test_a_sibling_that_starts_is_told_all_and_counts_from_there() -> None:
    news: list[int] = []
    one = limits(1, key_ann=Limits(requests_per_minute=10))
    assert one.has_news()
    assert one.publish() is not None
    assert Door(one).ask() is None
    assert one.publish() is not None
    late = limits(2, key_ann=Limits(requests_per_minute=10))
    hello = late.publish()
    assert hello is not None
    one.on_news = lambda: news.append(1)

    assert one.hear("r1", hello, 0.0) == ""
    assert one.has_news()
    told(one, late)
    assert one.hear("r1", hello, 0.0) == ""

    assert not one.has_news()
    assert news == [1]
    assert Door(late).left("remaining-requests") == "10"
    assert Door(one).ask() is None
    told(one, late)
    assert Door(late).left("remaining-requests") == "9"


def test_what_a_life_before_charged_is_passed_over() -> None:
    one, other = two(key_ann=Limits(requests_per_minute=10))
    old = limits(0, key_ann=Limits(requests_per_minute=10))
    for _ in range(2):
        assert Door(old).ask() is None
        message = old.publish()
        assert message is not None
        assert other.hear("r0", message, 0.0) == ""
    assert one.publish() is None

    assert Door(other).left("remaining-requests") == "10"


def test_so_many_siblings_are_remembered() -> None:
    one = limits(1, key_ann=Limits(requests_per_minute=10))
    hello = limits(2, key_ann=Limits(requests_per_minute=10)).publish()
    assert hello is not None
    for number in range(MAX_PEERS + 1):
        assert one.hear(f"r{number}", hello, 0.0) == ""
    assert one.publish() is not None

    assert one.hear("r1", hello, 0.0) == ""
    assert not one.has_news()
    assert one.hear("r0", hello, 0.0) == ""
    assert one.has_news()


def test_siblings_take_off_what_each_other_charged_and_returned() -> None:
    news: list[int] = []
    one, other = two(key_ann=Limits(requests_per_minute=10, tokens_per_minute=1000))
    one.on_news = lambda: news.append(1)
    here, there = Door(one), Door(other)
    assert here.ask(size=400) is None
    told(one, other)
    assert (there.left(), there.left("remaining-requests")) == ("900", "9")
    here.end(20, 5)
    told(one, other)
    told(one, other, again=True)

    assert (there.left(), there.left("remaining-requests")) == ("975", "9")
    assert len(news) == 4
    assert one.publish() is None
    assert one.publish(again=True) is None


def test_a_lost_message_is_made_good_by_the_next_and_an_old_one_changes_nothing() -> None:
    one, other = two(key_ann=Limits(tokens_per_minute=1000))
    here, there = Door(one), Door(other)
    assert here.ask(size=40) is None
    first = one.publish()
    assert first is not None
    assert other.hear("r0", first, 0.0) == ""
    assert here.ask(size=40) is None
    assert one.publish() is not None  # lost
    told(one, other, again=True)
    assert other.hear("r0", first, 0.0) == ""

    assert there.left() == "980"


def test_much_is_told_in_several_messages_and_unknown_accounts_are_passed_over() -> None:
    one, other = limits(1), limits(2, key_k0=Limits(requests_per_minute=9))
    wanted = {f"key:k{number}": Limits(requests_per_minute=9) for number in range(MAX_ROWS + 1)}
    one.replace(wanted, 0.0)
    for _ in range(2):
        told(one, other)
    for number in range(MAX_ROWS + 1):
        assert Door(one, Consumer("", f"k{number}")).ask() is None

    for _ in range(2):
        told(one, other)
    assert one.publish() is None
    assert Door(other, Consumer("", "k0")).left("remaining-requests") == "8"


def test_what_was_charged_to_an_account_that_is_gone_is_not_told() -> None:
    made = limits(key_ann=Limits(requests_per_minute=9))
    assert Door(made).ask() is None

    made.replace({}, 0.0)

    assert made.has_news()
    assert made.publish() is None


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\x01\x90", b"\x92\xff\x94\x01\x00\x90\xc2"])
def test_a_message_that_is_none_is_refused(data: bytes) -> None:
    assert limits().hear("r1", data, 0.0).startswith("limits of 'r1': ")


def test_names_are_those_that_requests_bear() -> None:
    assert (key_name("ann é"), tenant_name("é")) == ("ann ?", "Ã©")
    assert (len(key_name("k" * 500)), len(tenant_name("t" * 500))) == (128, 128)
    assert Account("key:a", Limits()).expected(40) == 10


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0ms"), (0.0201, "21ms"), (1.0, "1s"), (6.2, "7s"), (360, "6m0s"), (11_100, "3h5m0s")],
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text
