"""Requests held back while every worker is busy: bounded, fair between tenants, off by default."""

from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from math import inf
from typing import Final, Literal

import msgspec
from sortedcontainers import SortedDict

from kvmesh.bounds import counted
from kvmesh.core.admission.ledger import DEFAULT_QUANTUM

QueuePolicy = Literal["fcfs", "wspt", "priority"]
QueueFairness = Literal["tokens", "locality"]

TOO_MANY_REQUESTS: Final = 429
UNAVAILABLE: Final = 503

MAX_ASKED: Final = 16
"""Requests asked in vain before `release` gives up: each costs a choice of worker."""

MOST_PRIORITY: Final = 1 << 31
MOST_TOKENS: Final = 1 << 40
"""Whatever a request claims beyond counts as so much: a rank is a finite number."""

_FIRST_GUESS_S: Final = 0.1
_RATE_WEIGHT: Final = 0.1


class AdmissionOptions(msgspec.Struct, frozen=True):
    """How requests are held. `max_backlog_ms`: a request waits here, not at a worker, while its
    best worker's predicted backlog is longer; 0 holds only what its own targets hold, in the order
    of wspt.

    `policy` orders one tenant's requests: by arrival; by tokens / (1 + priority), shortest first;
    by priority, then arrival. `ageing_tokens_per_s` lets long ones overtake in the end under wspt.
    Tenants take turns by deficit round robin of `quantum_tokens`; with `fairness` "locality" the
    longest cached prefix goes first among those with a deficit left (`FairTurns`). With
    `sheds_negative` a request of negative priority is refused where it would wait.
    """

    policy: QueuePolicy = "fcfs"
    max_backlog_ms: float = 200.0
    max_queued: int = 1024
    max_queued_per_tenant: int = 256
    max_wait_s: float = 30.0
    quantum_tokens: int = DEFAULT_QUANTUM
    ageing_tokens_per_s: float = 200.0
    fairness: QueueFairness = "tokens"
    sheds_negative: bool = False


class WaitingRequest(msgspec.Struct, frozen=True):
    """One held request. `tokens` is the work it brings: its uncached tokens, else its prompt. It
    waits until `until_s` at the latest, whatever the bound is later.
    """

    request_id: str
    tokens: int
    tenant: str = ""
    priority: int = 0
    queued_s: float = 0.0
    until_s: float = inf


class Refusal(msgspec.Struct, frozen=True):
    """Why a request may not even wait, and when to try again (seconds, for Retry-After). `shed`: it
    may be dropped, as it says itself. `code` is a word for programs, "" the usual one; `final`: to
    try again is in vain.
    """

    status: int
    reason: str
    retry_after_s: int
    shed: bool = False
    code: str = ""
    final: bool = False


class AdmissionStatistics(msgspec.Struct, frozen=True):
    """Sizes now and counts since the start. `waited_s`: of all released together."""

    queued: int
    tenants: int
    held: int
    released: int
    refused: int
    expired: int
    cancelled: int
    waited_s: float


Rank = tuple[float, int]
"""What the policy says, then the order of arrival: the least is next."""


class _Tenant:
    """What waits, by rank; `asked` of it, the first, were asked in vain in the look under way."""

    __slots__ = ("asked", "deficit", "waiting")

    def __init__(self) -> None:
        self.deficit = 0
        self.waiting: SortedDict[Rank, WaitingRequest] = SortedDict()
        self.asked = 0

    def next(self) -> WaitingRequest | None:
        """Return the next to be asked."""
        if self.asked == len(self.waiting):
            return None
        return self.waiting.peekitem(self.asked)[1]


class HoldQueue:
    """The held requests of one router. Every request offered ends in exactly one way: released,
    refused, expired or cancelled.

    Deficit round robin: M. Shreedhar and G. Varghese, SIGCOMM 1995. WSPT: W. E. Smith, 1956.
    `options` may be replaced at any time; what waits already keeps its place.
    """

    def __init__(self, options: AdmissionOptions) -> None:
        self.options = options
        self._held: dict[str, tuple[Rank, WaitingRequest]] = {}
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()
        self._serial = count()
        self._interval_s = _FIRST_GUESS_S
        self._last_release_s: float | None = None
        self._waited_s = 0.0
        self._counts = {"held": 0, "released": 0, "refused": 0, "expired": 0, "cancelled": 0}

    def __len__(self) -> int:
        return len(self._held)

    @property
    def tokens(self) -> int:
        """Return the work of all that wait. O(waiting)."""
        return sum(one.tokens for _, one in self._held.values())

    def offer(self, held: WaitingRequest, now: float) -> Refusal | None:
        """Hold a request from `now` on; return why not when a bound is reached."""
        options = self.options
        tenant = self._tenants.get(held.tenant)
        if len(self._held) >= options.max_queued:
            return self._refuse(
                UNAVAILABLE, f"{counted(len(self._held), 'request')} waiting already"
            )
        if tenant is not None and len(tenant.waiting) >= options.max_queued_per_tenant:
            reason = f"{counted(len(tenant.waiting), 'request')} of this tenant waiting already"
            return self._refuse(TOO_MANY_REQUESTS, reason)
        if held.request_id in self._held:
            return self._refuse(TOO_MANY_REQUESTS, f"request {held.request_id} waits already")
        if options.sheds_negative and held.priority < 0:
            reason = f"all workers are behind, and priority {held.priority} does not wait"
            return self._refuse(TOO_MANY_REQUESTS, reason, shed=True)
        tokens = min(max(1, held.tokens), MOST_TOKENS)
        until_s = min(held.until_s, now + self._most_s)
        held = msgspec.structs.replace(held, queued_s=now, tokens=tokens, until_s=until_s)
        rank = self._rank(held), next(self._serial)
        if tenant is None:
            tenant = self._tenants[held.tenant] = _Tenant()
        self._held[held.request_id] = rank, held
        tenant.waiting[rank] = held
        self._counts["held"] += 1
        return None

    def release(self, now: float, admit: Callable[[WaitingRequest], bool]) -> list[WaitingRequest]:
        """Let requests go, fairly, while `admit` takes them; return those it took, in order.

        `admit` returns False when the request must go on waiting, each for a worker of its own:
        those behind it and other tenants are still asked, up to `MAX_ASKED` in vain; the next call
        goes on with the other tenants. Call it whenever load may have fallen. What `admit` raises
        is raised: then those it took before are released, and the request it was asked about waits.
        """
        released: list[WaitingRequest] = []
        passed_over: list[_Tenant] = []
        try:
            self._release(now, admit, released, passed_over)
        finally:
            for tenant in passed_over:
                tenant.asked = 0
        return released

    def _release(
        self,
        now: float,
        admit: Callable[[WaitingRequest], bool],
        released: list[WaitingRequest],
        passed_over: list[_Tenant],
    ) -> None:
        """Do as `release`. O(tenants) for each request asked, however many quanta it takes."""
        quantum, idle_turns = max(1, self.options.quantum_tokens), 0
        while len(passed_over) < min(len(self._held), MAX_ASKED):
            if idle_turns == len(self._tenants):
                self._skip_rounds(quantum)
            name, tenant = next(iter(self._tenants.items()))
            held = tenant.next()
            if held is not None and tenant.deficit < held.tokens:
                tenant.deficit += quantum
            if held is None or tenant.deficit < held.tokens:
                idle_turns += 1
                self._tenants.move_to_end(name)
                continue
            idle_turns = 0
            if not admit(held):
                tenant.asked += 1
                passed_over.append(tenant)
                self._tenants.move_to_end(name)
                continue
            tenant.deficit -= held.tokens
            self._drop(held)
            self._end_turn(name, tenant)
            self._waited_s += max(0.0, now - held.queued_s)
            self._note_release(now)
            released.append(held)

    def _skip_rounds(self, quantum: int) -> None:
        """Give all tenants at once the quanta of the rounds in which nobody could be asked."""
        missing = {
            name: held.tokens - tenant.deficit
            for name, tenant in self._tenants.items()
            if (held := tenant.next()) is not None
        }
        rounds = (min(missing.values()) - 1) // quantum
        for name in missing:
            self._tenants[name].deficit += rounds * quantum

    def tokens_before(self, held: WaitingRequest, now: float) -> int:
        """Return the work that would be let go before a newcomer: what ranks before it of its own
        tenant, and of each other tenant as much as turns give it meanwhile. O(waiting).
        """
        rank = self._rank(msgspec.structs.replace(held, queued_s=now))
        before: dict[str, int] = {}
        for (other, _), one in self._held.values():
            if one.tenant != held.tenant or other <= rank:
                before[one.tenant] = before.get(one.tenant, 0) + one.tokens
        own = before.pop(held.tenant, 0)
        share = own + held.tokens + self.options.quantum_tokens
        return own + sum(min(tokens, share) for tokens in before.values())

    def find(self, request_id: str) -> tuple[Rank, WaitingRequest]:
        """Return a request that waits and its rank. Raises `KeyError` for any other."""
        return self._held[request_id]

    @property
    def _most_s(self) -> float:
        """Return for how long a request waits at most; without a backlog to hold above only targets
        hold, and end that themselves.
        """
        return self.options.max_wait_s if self.options.max_backlog_ms > 0.0 else inf

    def bound(self, request_id: str, until_s: float) -> float:
        """Have a request wait until `until_s` at the latest; return until when it does. Raises
        `KeyError` when it does not wait.
        """
        rank, held = self._held[request_id]
        held = msgspec.structs.replace(held, until_s=min(held.until_s, until_s))
        self._held[request_id] = rank, held
        self._tenants[held.tenant].waiting[rank] = held
        return held.until_s

    def take(self, request_id: str, now: float) -> None:
        """Let one request go, whoever's turn it is. Raises `KeyError` when it does not wait."""
        _, held = self._held[request_id]
        self._drop(held)
        self._waited_s += max(0.0, now - held.queued_s)
        self._note_release(now)

    def cancel(self, request_id: str) -> bool:
        """Forget a request whose client went away; False when it does not wait here."""
        if request_id not in self._held:
            return False
        self._drop(self._held[request_id][1])
        self._counts["cancelled"] += 1
        return True

    def refuse(self, request_id: str) -> None:
        """Drop a request that waits in vain. Raises `KeyError` when it does not wait."""
        self._drop(self._held[request_id][1])
        self._counts["refused"] += 1

    def expire(self, now: float) -> list[WaitingRequest]:
        """Drop and return the requests that waited for as long as they may; answer them 503.
        O(waiting).
        """
        limit = now - self._most_s
        held = [one for _, one in self._held.values()]
        late = [one for one in held if one.queued_s <= limit or one.until_s <= now]
        for one in late:
            self._drop(one)
        self._counts["expired"] += len(late)
        return late

    def retry_after_s(self) -> int:
        """Return after how many seconds a new request would probably go at once, 1..60."""
        return min(60, max(1, round(self._interval_s * (len(self._held) + 1))))

    def statistics(self) -> AdmissionStatistics:
        """Return sizes and counts."""
        return AdmissionStatistics(
            queued=len(self._held),
            tenants=len(self._tenants),
            waited_s=self._waited_s,
            **self._counts,
        )

    def _rank(self, held: WaitingRequest) -> float:
        policy = self.options.policy if self.options.max_backlog_ms else "wspt"
        priority = min(max(held.priority, -MOST_PRIORITY), MOST_PRIORITY)
        if policy == "priority":
            return float(-priority)
        if policy == "wspt":
            work = held.tokens / (1 + max(0, priority))
            return work + self.options.ageing_tokens_per_s * held.queued_s
        return 0.0

    def _end_turn(self, name: str, tenant: _Tenant) -> None:
        held = tenant.next()
        if held is not None and tenant.deficit < held.tokens:
            self._tenants.move_to_end(name)

    def _drop(self, held: WaitingRequest) -> None:
        """Take a request out. O(log waiting)."""
        rank, _ = self._held.pop(held.request_id)
        tenant = self._tenants[held.tenant]
        del tenant.waiting[rank]
        if not tenant.waiting:
            del self._tenants[held.tenant]

    def _note_release(self, now: float) -> None:
        self._counts["released"] += 1
        if self._last_release_s is not None:
            interval_s = min(max(0.0, now - self._last_release_s), 60.0)
            self._interval_s += _RATE_WEIGHT * (interval_s - self._interval_s)
        self._last_release_s = now

    def _refuse(self, status: int, reason: str, *, shed: bool = False) -> Refusal:
        self._counts["refused"] += 1
        return Refusal(status, reason, self.retry_after_s(), shed)
