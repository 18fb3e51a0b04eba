"""Limits of keys and tenants: requests and tokens a minute, tokens a day, over all replicas.

A minute's limit is a bucket that fills evenly. A request is admitted while all its buckets hold
what it is expected to take, and pays that at once: its body's bytes by the account's mean tokens a
byte (a quarter at first), and the account's mean output. When it is over it pays what it used
instead. So a request that was underestimated makes later ones wait, and nothing is given twice.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from math import ceil
from typing import Final, Literal

import msgspec

from kvmesh.bounds import MAX_ORDINAL, UNREADABLE, Epoch, Figure, shown
from kvmesh.core.admission.shares import MAX_ROWS, ShareRow, Shares, key_of
from kvmesh.core.admission.sibling_counters import MAX_PEERS, SiblingCounters
from kvmesh.core.admission.usage import DAY_S, MOST_SHOWN, Consumer, UsageBatch, UsageSums
from kvmesh.errors import RequestError

Unit = Literal["requests", "tokens"]
UNITS: Final[tuple[Unit, ...]] = ("requests", "tokens")

MINUTE_S: Final = 60.0
TOKENS_PER_BYTE: Final = 0.25
LEARNED: Final = 0.2
"""Share of what was counted last in an account's means."""

MOST_SHARED: Final = 8192
"""Accounts of a sibling whose counters are remembered."""

TOO_MANY: Final = 429


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a key, or a tenant, may use; 0 is no limit. Tokens are those of prompts, cached ones
    included, and of answers. A day is one of UTC.
    """

    requests_per_minute: Figure = 0.0
    tokens_per_minute: Figure = 0.0
    tokens_per_day: Figure = 0.0

    def any(self) -> bool:
        """Return whether anything is limited."""
        return bool(self.requests_per_minute or self.tokens_per_minute or self.tokens_per_day)


def key_name(name: str) -> str:
    """Return a key's name as its requests bear it."""
    return name.encode("ascii", "replace").decode()[:MOST_SHOWN]


def tenant_name(name: str) -> str:
    """Return a tenant's name as its requests bear it."""
    return name.encode().decode("latin-1")[:MOST_SHOWN]


class _Bucket:
    """What is left of a minute's limit, below 0 for what was used beyond; `charged` and `returned`
    here are told to siblings.
    """

    __slots__ = ("_since_s", "born", "charged", "key", "left", "per_minute", "returned", "size")

    def __init__(self, per_minute: float, name: str, unit: Unit, born: int, now: float) -> None:
        self.per_minute = per_minute
        self.size = max(1.0, per_minute)
        self.left = self.size
        self.key = key_of(f"limit of {unit}: {name}")
        self.born = born
        self.charged = self.returned = 0
        self._since_s = now

    def fill(self, now: float) -> None:
        """Add what came since the last time; nothing for a time before that."""
        passed_s = max(0.0, now - self._since_s)
        self.left = min(self.size, self.left + passed_s * self.size / MINUTE_S)
        self._since_s += passed_s

    def take(self, amount: float, now: float) -> None:
        """Take an amount off, below 0 add it: behind what came before, which a full bucket lacks
        room for.
        """
        self.fill(now)
        self.left = min(self.size, self.left - amount)

    def charge(self, amount: int, now: float) -> None:
        """Take an amount off that is charged here."""
        self.charged = min(MAX_ORDINAL, self.charged + amount)
        self.take(amount, now)

    def give_back(self, amount: int, now: float) -> None:
        """Add an amount that was charged."""
        self.returned = min(self.charged, self.returned + amount)
        self.take(-amount, now)

    def wait_s(self, amount: float) -> float:
        """Return after how many seconds so much is there."""
        return max(0.0, amount - self.left) * MINUTE_S / self.size

    def row(self) -> ShareRow:
        """Return what siblings are told."""
        return ShareRow(self.key, self.born, self.charged, self.returned, 0)


class Account:
    """A key or a tenant with limits. `spent` tokens are known of its present `day`; `held` are
    expected of requests under way, `ended` those of requests that are over and not counted yet,
    whose bodies had `ended_bytes`; `prompt` tokens were counted of them.
    """

    __slots__ = (
        "buckets", "day", "ended", "ended_bytes", "held", "limits", "mean_output", "name", "prompt",
        "spent", "tokens_per_byte",
    )  # fmt: skip

    def __init__(self, name: str, limits: Limits) -> None:
        self.name = name
        self.limits = limits
        self.buckets: dict[Unit, _Bucket] = {}
        self.day = self.spent = self.held = self.ended = self.ended_bytes = self.prompt = 0
        self.mean_output, self.tokens_per_byte = 0.0, TOKENS_PER_BYTE

    def expected(self, body_bytes: int) -> int:
        """Return how many tokens a request with such a body is expected to take."""
        if not body_bytes:
            return 0
        tokens = round(body_bytes * self.tokens_per_byte + self.mean_output)
        bucket = self.buckets.get("tokens")
        return tokens if bucket is None else min(tokens, int(bucket.size))

    def spend(self, day: int, tokens: int) -> None:
        """Count tokens of a day; those of days before the present one count nothing."""
        if day > self.day:
            self.day, self.spent = day, 0
        if day == self.day:
            self.spent += tokens


class Ticket(msgspec.Struct, eq=False, gc=False):
    """What an admitted request has paid of each account, tokens, for a body of so many bytes."""

    paid: list[tuple[Account, int]]
    body_bytes: int


class LimitNews(msgspec.Struct, frozen=True, array_like=True):
    """What a replica charged, by one of its lives."""

    epoch: Epoch
    shares: Shares


class LimitStatistics(msgspec.Struct, frozen=True):
    """Accounts with limits, and requests refused by which of them."""

    accounts: int
    refused: Mapping[str, int]


_decode: Final = msgspec.msgpack.Decoder(LimitNews).decode


class UsageLimits:
    """The accounts of one replica, all that its file names; `tokens` False: requests alone are
    limited, since nobody tells what they used. `on_news` is called when siblings should be told.
    """

    def __init__(self, epoch: int = 0, *, tokens: bool = True) -> None:
        self._epoch = epoch
        self._counts_tokens = tokens
        self._accounts: dict[str, Account] = {}
        self._shared: dict[int, _Bucket] = {}
        self._ended: dict[Account, None] = {}
        self._changed: OrderedDict[int, None] = OrderedDict()
        self._told: OrderedDict[int, None] = OrderedDict()
        self._siblings = SiblingCounters(MOST_SHARED)
        self._heard: OrderedDict[str, int] = OrderedDict()
        self.on_news: Callable[[], None] | None = None
        self._serial = 0
        self._refused = {"requests": 0, "tokens": 0, "day": 0}

    def replace(self, limits: Mapping[str, Limits], now: float) -> None:
        """Have other limits from now on, by `key:NAME` and `tenant:NAME`; what accounts whose
        limits stay have used counts on.
        """
        before, self._accounts = self._accounts, {}
        for name, wanted in limits.items():
            known = before.get(name)
            if known is None or known.limits != wanted:
                account = Account(name, wanted)
                if known is not None:
                    account.day, account.spent = known.day, known.spent
                known = self._open(account, now)
            self._accounts[name] = known
        self._shared = {
            one.key: one for known in self._accounts.values() for one in known.buckets.values()
        }
        self.tell_all()

    def of(self, key: str, tenant: str) -> tuple[Account, ...]:
        """Return the accounts of a request by the names that it bears; none: it has no limit."""
        found = (self._accounts.get(f"key:{key}"), self._accounts.get(f"tenant:{tenant}"))
        return tuple(one for one in found if one is not None)

    def admit(
        self, accounts: Iterable[Account], body_bytes: int, now: float, unix_s: float
    ) -> Ticket:
        """Charge a request. Raises `RequestError` 429 where an account has not enough left."""
        paid = [(one, one.expected(body_bytes)) for one in accounts]
        for account, tokens in paid:
            self._check(account, tokens, now, unix_s)
        for account, tokens in paid:
            account.held += tokens
            self._charge(account, "requests", 1, now)
            self._charge(account, "tokens", tokens, now)
        return Ticket(paid, body_bytes)

    def end(self, ticket: Ticket) -> None:
        """Note that a request is over; what it used is told by `used`, then `settle` is called."""
        for account, tokens in ticket.paid:
            account.ended += tokens
            account.ended_bytes += ticket.body_bytes
            self._ended[account] = None

    def take_ended(self) -> list[tuple[Account, int, int]]:
        """Return what requests have paid that are over, and the bytes of their bodies, for `settle`
        once they are counted.
        """
        taken = [(one, one.ended, one.ended_bytes) for one in self._ended]
        for account, _, _ in taken:
            account.ended = account.ended_bytes = 0
        self._ended.clear()
        return taken

    def used(self, who: Consumer, usage: UsageSums, now: float, unix_s: float) -> None:
        """Charge what a request used that is over."""
        tokens = usage.tokens
        for account in self.of(who.key, who.tenant) if tokens else ():
            account.spend(int(unix_s) // DAY_S, tokens)
            account.mean_output += LEARNED * (usage.output_tokens - account.mean_output)
            account.prompt += usage.prompt_tokens
            self._charge(account, "tokens", tokens, now)

    def settle(self, taken: Iterable[tuple[Account, int, int]], now: float) -> None:
        """Give back what was expected of requests that are counted now."""
        for account, tokens, body_bytes in taken:
            account.held -= tokens
            if body_bytes and account.prompt:
                found = account.prompt / body_bytes
                account.tokens_per_byte += LEARNED * (found - account.tokens_per_byte)
            account.prompt = 0
            if (bucket := account.buckets.get("tokens")) is not None:
                bucket.give_back(tokens, now)
                self._note(bucket)

    def learn(self, batch: UsageBatch) -> None:
        """Count what siblings, or lives before this one, served of the present day."""
        day = int(batch.until) // DAY_S
        for row in batch.rows:
            for account in self.of(row.who.key, row.who.tenant):
                account.spend(day, row.usage.tokens)

    def headers(self, accounts: Iterable[Account], now: float) -> bytes:
        """Return the lines that tell a client of its limits, of several accounts the one of which
        least is left.
        """
        lines: list[bytes] = []
        for unit in UNITS:
            buckets = [one.buckets[unit] for one in accounts if unit in one.buckets]
            if buckets:
                for one in buckets:
                    one.fill(now)
                least = min(buckets, key=lambda one: one.left / one.size)
                told = (
                    ("limit", f"{int(least.size)}"),
                    ("remaining", f"{max(0, int(least.left))}"),
                    ("reset", duration(least.wait_s(least.size))),
                )
                lines += [f"x-ratelimit-{what}-{unit}: {it}\r\n".encode() for what, it in told]
        return b"".join(lines)

    def tell_all(self) -> None:
        """Have all accounts told, at a start and to a sibling that starts: it counts from what it
        was told first.
        """
        self._changed.update(dict.fromkeys(self._shared))
        if self._changed and self.on_news is not None:
            self.on_news()

    def has_news(self) -> bool:
        """Return whether siblings should be told something."""
        return bool(self._changed)

    def publish(self, *, again: bool = False) -> bytes | None:
        """Return what was charged since the last time, a part of it if that is much; None: nothing.
        With `again` what was told since the last such call, too: siblings may have missed it.
        """
        if again:
            self._changed.update(self._told)
            self._told.clear()
        rows: list[ShareRow] = []
        while self._changed and len(rows) < MAX_ROWS:
            key, _ = self._changed.popitem(last=False)
            if (bucket := self._shared.get(key)) is not None:
                rows.append(bucket.row())
                if not again:
                    self._told[key] = None
        if not rows:
            return None
        return msgspec.msgpack.encode(LimitNews(self._epoch, Shares(self._serial, 0, rows)))

    def hear(self, sibling: str, data: bytes, now: float) -> str:
        """Take off what a sibling charged; return what is wrong with its message, "" if nothing."""
        try:
            news = _decode(data)
        except UNREADABLE as error:
            return f"limits of {shown(sibling)}: {error}"
        if news.epoch > self._heard.get(sibling, -1):
            self._heard.pop(sibling, None)
            self._heard[sibling] = news.epoch
            if len(self._heard) > MAX_PEERS:
                self._heard.popitem(last=False)
            self.tell_all()
        if self._siblings.meet(sibling, news.epoch, news.shares.serial):
            for row in news.shares.rows:
                amounts, bucket = self._siblings.take(sibling, row), self._shared.get(row.key)
                if amounts is not None and bucket is not None:
                    bucket.take(amounts[0] - amounts[1], now)
        return ""

    def statistics(self) -> LimitStatistics:
        """Return the counts."""
        return LimitStatistics(len(self._accounts), self._refused)

    def _open(self, account: Account, now: float) -> Account:
        sizes = {
            "requests": account.limits.requests_per_minute,
            "tokens": account.limits.tokens_per_minute if self._counts_tokens else 0.0,
        }
        for unit in UNITS:
            if sizes[unit]:
                self._serial += 1
                bucket = _Bucket(sizes[unit], account.name, unit, self._serial, now)
                account.buckets[unit] = bucket
        return account

    def _charge(self, account: Account, unit: Unit, amount: int, now: float) -> None:
        bucket = account.buckets.get(unit)
        if bucket is not None and amount:
            bucket.charge(amount, now)
            self._note(bucket)

    def _note(self, bucket: _Bucket) -> None:
        """Have siblings told of a bucket; without any, a note is kept for each bucket."""
        self._changed[bucket.key] = None
        if self.on_news is not None:
            self.on_news()

    def _check(self, account: Account, tokens: int, now: float, unix_s: float) -> None:
        limits, day = account.limits, int(unix_s) // DAY_S
        for unit, bucket in account.buckets.items():
            amount = tokens if unit == "tokens" else 1
            bucket.fill(now)
            if bucket.left < amount:
                words = f"{bucket.per_minute:,g} {unit} a minute"
                raise self._refusal(account, unit, words, bucket.wait_s(amount))
        if tokens and limits.tokens_per_day and self._counts_tokens:
            account.spend(day, 0)
            if account.spent + account.held >= limits.tokens_per_day:
                words = f"{limits.tokens_per_day:,.0f} tokens a day (UTC)"
                raise self._refusal(account, "day", words, (day + 1) * DAY_S - unix_s)

    def _refusal(self, account: Account, what: str, limit: str, wait_s: float) -> RequestError:
        self._refused[what] += 1
        kind, _, name = account.name.partition(":")
        by_day = what == "day"
        error = RequestError(
            f"{kind} {shown(name)} has spent its {limit}: try again in {duration(wait_s)}",
            status=TOO_MANY,
            code="insufficient_quota" if by_day else "rate_limit_exceeded",
        )
        error.retry_after_s, error.final = max(1, ceil(wait_s)), by_day
        return error


def duration(seconds: float) -> str:
    """Return a duration as OpenAI's headers write it: `20ms`, `7s`, `6m0s`, `3h5m0s`."""
    if seconds < 1.0:
        return f"{ceil(seconds * 1000.0)}ms"
    whole = ceil(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{minutes}m{rest}s" if minutes or hours else f"{rest}s"
    return f"{hours}h{text}" if hours else text
