"""Who was served how much in a bucket: this replica's charges and those its siblings told."""

from collections import OrderedDict
from typing import Final

import msgspec

from kvmesh.bounds import MAX_ORDINAL
from kvmesh.core.admission.shares import (
    MAX_ROWS,
    REST,
    LedgerStatistics,
    ShareRow,
    Shares,
    TenantShare,
    key_of,
)
from kvmesh.core.admission.sibling_counters import SiblingCounters

DEFAULT_QUANTUM: Final = 4096

MAX_ACCOUNTS: Final = 2048
"""Tenants known one by one; those beyond share one account. As many as wait in two full queues."""

PASSED_QUANTA: Final = 8
"""The claim that is left, at most, to who was passed over while it waited at siblings alone."""


class _Account(msgspec.Struct, eq=False):
    """One tenant. `position` is where its service stands on the common line, `here` how many of
    its requests wait at this replica, `there` the siblings where some do; `passed` while no
    account is taken of these.
    """

    key: int
    name: str
    born: int
    position: int
    charged: int = 0
    returned: int = 0
    here: int = 0
    there: set[str] = set()
    passed: bool = False


class Ledger:
    """Deficits of all tenants, as one line: a tenant with `position` below `limit` has the
    difference left, and may be served.

    Every charge moves its tenant on. When no claimant (a tenant with a request held at any replica)
    has a deficit left, `refill` puts the limit `quantum` above the last of them. Whoever begins to
    wait is moved up to the last claimant: what was not asked for cannot be saved up.

    Siblings tell counters since their start, so a message lost, repeated or late changes nothing,
    and what a sibling charged before it died stays charged. `received` is the sum of these charges;
    `updates`: siblings should be told at once who waits, or of a new round.
    """

    def __init__(self, quantum: int) -> None:
        self.quantum = max(1, quantum)
        self.limit = self.quantum
        self._accounts: dict[int, _Account] = {}
        self._claimants: dict[int, _Account] = {}
        self._changed: OrderedDict[int, None] = OrderedDict()
        self._siblings = SiblingCounters(MAX_ACCOUNTS)
        self._front = self.limit
        self._serial = 0
        self.updates = False
        self.received = 0
        self._charged = self._passed = 0

    def __len__(self) -> int:
        return len(self._accounts)

    def account(self, tenant: str) -> int:
        """Return the key of the account of `tenant`, which is open while a request of it waits."""
        return self._open(key_of(tenant), tenant).key

    def begin_waiting(self, tenant: str) -> int:
        """Note that a request of `tenant` is held here; return the key of its account."""
        account = self._open(key_of(tenant), tenant)
        self._claim(account)
        self.updates |= not account.here
        account.here += 1
        self._changed[account.key] = None
        return account.key

    def end_waiting(self, key: int) -> None:
        """Note that a request is held no longer, whatever became of it."""
        account = self._accounts[key]
        account.here -= 1
        self._changed[account.key] = None
        if not account.here:
            self.updates = True
            self._settle(account)

    def charge(self, key: int, tokens: int) -> None:
        """Count so many tokens of service for an open account."""
        account = self._accounts[key]
        tokens = min(max(0, tokens), MAX_ORDINAL - account.charged)
        account.charged += tokens
        self._charged += tokens
        self._move(account, tokens)
        self._changed[account.key] = None

    def give_back(self, tenant: str, tokens: int) -> None:
        """Take back what was charged for service that was not used."""
        account = self._accounts.get(key_of(tenant)) or self._accounts.get(REST)
        if account is not None:
            tokens = min(max(0, tokens), account.charged - account.returned)
            account.returned += tokens
            account.position -= tokens
            self._changed[account.key] = None

    def left(self, key: int) -> int:
        """Return the deficit of an open account: above 0 its tenant may be served."""
        return self.limit - self._accounts[key].position

    def remote_claims(self) -> bool:
        """Return whether a tenant that waits at siblings alone has more than half a quantum left.

        Less is no reason to wait for: replicas may disagree by as much on who is behind.
        """
        least = self.limit - self.quantum // 2
        return any(not one.here and one.position < least for one in self._claimants.values())

    def held_back_remotely(self) -> bool:
        """Return whether a tenant that waits at siblings alone has nothing left: they keep it
        waiting for who has.
        """
        return any(not one.here and one.position >= self.limit for one in self._claimants.values())

    def waits_remotely(self) -> bool:
        """Return whether anybody waits at siblings."""
        return any(one.there for one in self._claimants.values())

    def pass_over(self) -> None:
        """Go on without the tenants that wait at siblings alone, until they are served there."""
        for account in [one for one in self._claimants.values() if not one.here]:
            account.passed = True
            self._passed += 1
            del self._claimants[account.key]

    def refill(self) -> bool:
        """Put the limit a quantum above the last claimant; return whether that moved it."""
        limit = self._last() + self.quantum if self._claimants else 0
        if limit <= self.limit:
            return False
        self.limit, self.updates = limit, True
        return True

    def overdraw(self, key: int) -> None:
        """Let a tenant be served though others have a deficit, which nobody can serve now: they
        keep a claim to one quantum.
        """
        least = self._accounts[key].position - self.quantum
        for account in self._claimants.values():
            account.position = max(account.position, least)

    def publish(self) -> Shares | None:
        """Return what changed since the last call, a part of it if that is much; None: nothing."""
        updates, self.updates = self.updates, False
        rows: list[ShareRow] = []
        while self._changed and len(rows) < MAX_ROWS:
            key, _ = self._changed.popitem(last=False)
            rows.append(_row(self._accounts[key]))
        return Shares(self._serial, self._round_left(), rows) if rows or updates else None

    def publish_again(self) -> Shares:
        """Return the state as published last, or as it is now: sent at intervals for replicas that
        missed it.
        """
        for account in self._claimants.values():
            if account.here:
                self._changed[account.key] = None
        shares = self.publish() or Shares(self._serial, self._round_left(), [])
        return msgspec.structs.replace(shares, beat=True)

    def receive(self, peer: str, epoch: int, shares: Shares) -> None:
        """Count what a sibling charged since it was last heard."""
        if not self._siblings.meet(peer, epoch, shares.serial):
            return
        for row in shares.rows:
            self._receive_row(peer, row, beat=shares.beat)
        if self._claimants:
            # Any limit from the last claimant to a quantum above keeps the bound; that of the
            # sibling that is furthest keeps replicas from waiting for each other.
            left = min(shares.left, self.quantum)
            self.limit = max(self.limit, self._last() + left)

    def forget_waiting(self, peer: str) -> None:
        """Expect no more of a sibling that left. What it charged stays charged, and should it come
        back counts no second time.
        """
        for account in [one for one in self._claimants.values() if peer in one.there]:
            account.there.discard(peer)
            self._settle(account)
        for account in self._accounts.values():
            account.there.discard(peer)

    def statistics(self) -> LedgerStatistics:
        """Return sizes and counts. O(tenants that wait)."""
        places = [one.position for one in self._claimants.values()]
        return LedgerStatistics(
            tenants=len(self._accounts),
            waiting=len(places),
            apart=max(places) - min(places) if places else 0,
            charged=self._charged,
            received=self.received,
            passed=self._passed,
        )

    def shares(self, most: int) -> list[TenantShare]:
        """Return the tenants for people, those that wait first, then the furthest ahead."""
        found = sorted(
            self._accounts.values(), key=lambda one: (-one.here, not one.there, -one.position)
        )
        return [
            TenantShare(
                tenant=one.name or f"#{one.key:016x}",
                service=one.charged - one.returned,
                deficit=self.limit - one.position,
                waiting=one.here,
                waits_remotely=bool(one.there),
            )
            for one in found[:most]
        ]

    def _receive_row(self, peer: str, row: ShareRow, *, beat: bool) -> None:
        updates = self._siblings.take(peer, row)
        if updates is None:
            return
        charged, returned = updates
        self.received += charged
        account = self._open(row.key, "")
        if row.waiting:
            account.there.add(peer)
            if charged or beat or not account.passed:
                self._claim(account)
        else:
            account.there.discard(peer)
        self._move(account, charged - returned)
        self._settle(account)

    def _claim(self, account: _Account) -> None:
        """Have an account count as waiting. What it did not ask for before is gone; who was passed
        over asked for it.
        """
        if account.key in self._claimants:
            return
        if self._claimants:
            least = self._last()
        else:
            least, self.limit = self._front - self.quantum, self._front
        if account.passed:
            least -= PASSED_QUANTA * self.quantum
            account.passed = False
        account.position = max(account.position, least)
        self._claimants[account.key] = account
        last = self._last()
        self.limit = max(last, min(self.limit, last + self.quantum))

    def _last(self) -> int:
        return min(one.position for one in self._claimants.values())

    def _round_left(self) -> int:
        return max(0, self.limit - self._last()) if self._claimants else 0

    def _settle(self, account: _Account) -> None:
        """Have an account that waits nowhere claim nothing."""
        if not account.here and not account.there:
            account.passed = False
            self._claimants.pop(account.key, None)

    def _move(self, account: _Account, tokens: int) -> None:
        account.position += tokens
        self._front = max(self._front, account.position)

    def _open(self, key: int, name: str) -> _Account:
        account = self._accounts.get(key)
        if account is None:
            if len(self._accounts) >= MAX_ACCOUNTS:
                self._close_idle()
            if len(self._accounts) >= MAX_ACCOUNTS:
                key, name = REST, ""
                account = self._accounts.get(REST)
        if account is None:
            self._serial += 1
            position = self._front - self.quantum
            account = self._accounts[key] = _Account(key, name, self._serial, position)
        elif name and not account.name:
            account.name = name
        return account

    def _close_idle(self) -> None:
        """Close the accounts nobody waits for: those of whom nothing would be remembered, else the
        half that is least ahead.
        """
        idle = [one for one in self._accounts.values() if not one.here and not one.there]
        idle.sort(key=lambda one: one.position)
        start = self._front - self.quantum
        behind = [one for one in idle if one.position <= start]
        for account in behind or idle[: (len(idle) + 1) // 2]:
            del self._accounts[account.key]
            self._changed.pop(account.key, None)


def _row(account: _Account) -> ShareRow:
    return ShareRow(
        account.key, account.born, account.charged, account.returned, max(0, account.here)
    )
