"""Locality-aware fair shares: the longest cached prefix among tenants with a deficit left.

Source: Cao et al., Locality-aware Fair Scheduling in LLM Serving, 2025 (DLPM and D2LPM).
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Final, Protocol

import msgspec

from kvmesh.core.admission.ledger import Ledger
from kvmesh.core.admission.prefix_groups import PrefixGroups
from kvmesh.core.admission.queue import MAX_ASKED, Rank, WaitingRequest
from kvmesh.core.admission.tenant_line import TenantLine
from kvmesh.core.blocks.hashing import Hashes

MAX_TENANTS: Final = 16
"""Tenants compared for one place: each costs up to `MAX_LOOKED` requests' looks into the index."""

MAX_REFUSED: Final = 4
"""A tenant is given up for its own choice of worker when so many of its requests were refused."""

MAX_RAISED: Final = 16
"""Requests that begin like one just placed and are thought to be cached now."""

REFRESHED: Final = 8
"""Requests looked up anew in each look, in turns: caches change without news of it here."""

YIELD_S: Final = 0.2
"""A place is kept so long for a tenant with a deficit that waits at siblings alone."""


class Cached(msgspec.Struct, frozen=True, gc=False):
    """Blocks of a prompt cached at any worker, and at one that has room."""

    anywhere: int
    with_room: int


NOTHING_CACHED: Final = Cached(0, 0)


class Places(Protocol):
    """What a look for the next requests asks of routing."""

    def has_room(self) -> bool:
        """Return whether any worker may be given a request now."""
        ...

    def cached(self, request_id: str) -> Cached:
        """Return how much of a waiting request is cached."""
        ...

    def would_take(self, request_id: str) -> bool:
        """Return whether the worker of its choice would be given a request now."""
        ...

    def place(self, request_id: str, *, anywhere: bool) -> int | None:
        """Place a request at the worker of its choice, or at any that has room; return the tokens
        to charge for it, None when it must go on waiting.
        """
        ...


class _View:
    """What was asked in vain in one look: requests, how often of each tenant (`refused`), and the
    tenants that no worker with room takes (`hopeless`).
    """

    __slots__ = ("asked", "hopeless", "now", "places", "refused")

    def __init__(self, places: Places, now: float) -> None:
        self.places = places
        self.now = now
        self.asked: set[str] = set()
        self.refused: Counter[str] = Counter()
        self.hopeless: set[str] = set()

    def refuse(self, request_id: str, tenant: str) -> str:
        """Note that a request would rather wait for a busy worker; return ""."""
        self.asked.add(request_id)
        self.refused[tenant] += 1
        return ""

    def stuck(self, tenant: str) -> bool:
        """Return whether to ask no more of a tenant's requests for their own choice."""
        return self.refused[tenant] >= MAX_REFUSED


class FairTurns:
    """Who is next of what a `HoldQueue` holds, where tenants share by service and cache.

    A request costs its uncached tokens at its worker and its output. Of the tenants with a deficit
    in `ledger` the request with the longest prefix cached at a worker with room goes first, ties by
    arrival. Where all of these would rather wait for a busy worker they do, until others have gone
    ahead by a quantum, or siblings hold others back: then they are placed where there is room. Only
    what no tenant with a deficit can take is given to those beyond.

    `largest_gap` says how far the services of two tenants may part. Proof: `refill` puts the limit
    at most a quantum Q above the last claimant; who is served was less than Q above the limit and
    moves by the largest cost U at most; so positions of those who wait lie within 2 Q + U as this
    replica sees them, at both ends of any time: with one replica the gap is at most 2 (2 Q + U).
    Replicas place those who begin to wait by what they have heard, which is once more as far apart,
    and each end is moved by H, what siblings charged and this replica did not hear yet. A replica
    that dies takes with it what it had not told, and one that starts counts all who wait as level.
    Output is charged in advance: what is wrong in that moves the gap, too.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._lines: OrderedDict[str, TenantLine] = OrderedDict()
        self._tenants: dict[str, str] = {}
        self._groups = PrefixGroups()
        self._refresh: OrderedDict[str, None] = OrderedDict()
        self._yielding: tuple[float, int] | None = None
        self._idle_s: float | None = None

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._tenants

    def gives_way(self, tenant: str) -> bool:
        """Return whether a new request of `tenant` must wait for others at siblings."""
        ledger = self.ledger
        return ledger.remote_claims() and ledger.left(ledger.account(tenant)) <= 0

    def enter(self, rank: Rank, held: WaitingRequest, hashes: Hashes) -> None:
        """Take in a request that the queue holds."""
        self._groups.enter(held.request_id, hashes)
        line = self._lines.get(held.tenant)
        key = self.ledger.begin_waiting(held.tenant)
        if line is None:
            line = self._lines[held.tenant] = TenantLine(key)
        line.enter(held.request_id, *rank)
        self._tenants[held.request_id] = held.tenant
        self._refresh[held.request_id] = None
        self._refresh.move_to_end(held.request_id, last=False)

    def leave(self, request_id: str) -> None:
        """Take out a request that waits no longer; no error when it is not here."""
        tenant = self._tenants.pop(request_id, None)
        if tenant is None:
            return
        line = self._lines[tenant]
        line.leave(request_id)
        self._forget(request_id, tenant, line)

    def _forget(self, request_id: str, tenant: str, line: TenantLine) -> None:
        if not len(line):
            del self._lines[tenant]
        self._groups.leave(request_id)
        del self._refresh[request_id]
        self.ledger.end_waiting(line.key)

    def release(self, places: Places, now: float) -> Iterator[str]:
        """Yield the requests that were placed, in order, while there is room; each is out by then.

        At most `MAX_ASKED` are asked in vain: each costs a choice of worker.
        """
        view = _View(places, now)
        self._refresh_some(view)
        while self._tenants and len(view.asked) < (MAX_ASKED if places.has_room() else 1):
            request_id = self._next(view)
            if request_id is None:
                return
            if request_id:
                yield request_id

    def _next(self, view: _View) -> str | None:
        """Return a request that was placed, "" when the one asked was not, None to end the look."""
        willing = [name for name, line in self._lines.items() if self.ledger.left(line.key) > 0]
        found = self._best(view, (name for name in willing if not view.stuck(name)))
        if found is not None:
            return self._ask(view, found, anywhere=False)
        if not willing:
            if self._keeps_room(view):
                return None
            moved = self.ledger.refill()
            assert moved, "who waits here has nothing left, and who waits elsewhere little"
            view.refused.clear()
            return ""
        return self._next_beyond(view, willing) if view.places.has_room() else None

    def _next_beyond(self, view: _View, willing: list[str]) -> str | None:
        """Do as `_next` where those with a deficit would rather wait for a worker."""
        ledger, lines = self.ledger, self._lines
        rest = [name for name in lines if not view.stuck(name)]
        near = (name for name in rest if ledger.left(lines[name].key) > -ledger.quantum)
        if (found := self._best(view, near)) is not None:
            return self._ask(view, found, anywhere=False)
        ahead = self._best(view, iter(rest))
        if ahead is not None and not view.places.would_take(ahead):
            return view.refuse(ahead, self._tenants[ahead])
        if ahead is None and not self._holds_others_back(view):
            return None
        left = (name for name in willing if name not in view.hopeless)
        if (found := self._best(view, left, again=True)) is not None:
            return self._ask(view, found, anywhere=True)
        return None if ahead is None else self._ask(view, ahead, anywhere=False, ahead=True)

    def _holds_others_back(self, view: _View) -> bool:
        """Return whether siblings keep others waiting for who waits here for a worker, as far as is
        known; after half of `YIELD_S` they are thought to.
        """
        if not self.ledger.waits_remotely():
            self._idle_s = None
            return False
        if self._idle_s is None:
            self._idle_s = view.now
        return self.ledger.held_back_remotely() or view.now >= self._idle_s + YIELD_S / 2

    def _keeps_room(self, view: _View) -> bool:
        """Return whether to give way a little longer to who waits elsewhere: `YIELD_S` while there
        is room, and as long as siblings go on charging.
        """
        if not self.ledger.remote_claims():
            self._yielding = None
            return False
        received = self.ledger.received
        if not view.places.has_room():
            return True
        if self._yielding is None or self._yielding[1] != received:
            self._yielding = view.now, received
        if view.now < self._yielding[0] + YIELD_S:
            return True
        self._yielding = None
        self.ledger.pass_over()
        return False

    def _ask(self, view: _View, request_id: str, *, anywhere: bool, ahead: bool = False) -> str:
        tenant = self._tenants[request_id]
        line = self._lines[tenant]
        tokens = view.places.place(request_id, anywhere=anywhere)
        if tokens is None:
            if anywhere:
                view.hopeless.add(tenant)
            return view.refuse(request_id, tenant)
        if not anywhere:
            self._idle_s = None
        if ahead:
            self.ledger.overdraw(line.key)
        self.ledger.charge(line.key, tokens)
        depth, alike = self._groups.alike(request_id, MAX_RAISED)
        for other in alike:
            self._lines[self._tenants[other]].sort_anew(other, depth, at_least=True)
        self._lines.move_to_end(tenant)
        del self._tenants[request_id]
        line.served(request_id)
        self._forget(request_id, tenant, line)
        return request_id

    def _best(self, view: _View, tenants: Iterator[str], *, again: bool = False) -> str | None:
        """Return the request with the longest prefix where there is room, of the first tenants'
        next ones.
        """
        best: tuple[int, int, str] | None = None
        for name in islice(tenants, MAX_TENANTS):
            own: tuple[float, int, int, str] | None = None
            line = self._lines[name]
            for request_id in line.next_ones(() if again else view.asked):
                cached = view.places.cached(request_id)
                line.sort_anew(request_id, cached.anywhere)
                policy, _, arrival = line.order(request_id)
                order = policy, -cached.with_room, arrival, request_id
                own = order if own is None else min(own, order)
            if own is not None:
                best = own[1:] if best is None else min(best, own[1:])
        return None if best is None else best[2]

    def _refresh_some(self, view: _View) -> None:
        for _ in range(min(REFRESHED, len(self._refresh))):
            request_id = next(iter(self._refresh))
            self._refresh.move_to_end(request_id)
            blocks = view.places.cached(request_id).anywhere
            self._lines[self._tenants[request_id]].sort_anew(request_id, blocks)
