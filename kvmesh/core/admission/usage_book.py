"""The usage of a bucket as one replica knows it: what ended here, and what its siblings told."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from kvmesh.bounds import UNREADABLE, counted, shown
from kvmesh.core.admission.usage import (
    MOST_BATCHED,
    By,
    Consumer,
    UsageBatch,
    UsageRow,
    UsageSums,
    UsageTable,
    UsageWindow,
    UsageWindows,
    grouped,
)

MOST_UNSENT: Final = 512
"""Batches that wait to be stored; beyond it the oldest are dropped, and counted as lost."""

MOST_TOTALS: Final = 64
"""Tenants whose sums since the start are kept: those that somebody named."""

OTHER: Final = "other"

_decode: Final = msgspec.json.Decoder(UsageBatch).decode
_encode: Final = msgspec.json.Encoder().encode


class Unsent(msgspec.Struct, eq=False):
    """A batch as JSON, how many requests it counts, and when it was sent last; 0: never."""

    data: bytes
    requests: int
    sent_s: float = 0.0


class UsageStatistics(msgspec.Struct, frozen=True):
    """Counts since the start. `batches` were made here, `received` of siblings, or of a life before
    this one; `refused` could not be read. `lost_requests` are those of batches that were dropped
    before they were stored, `unsent` those of batches that wait.
    """

    batches: int
    received: int
    refused: int
    lost_requests: int
    unsent: int


class UsageBook:
    """Counts requests that ended here by who sent them, and makes a batch of them at each `flush`.

    `unsent` are batches by id, the oldest first, taken out by whoever has stored them. Of the
    `named` tenants the sums of this replica are kept since its start, those of all others together.
    `on_received` is called with each batch that another told, or a life before this one. `missing`
    says what of the bucket is not counted here, "" for nothing.
    """

    def __init__(self, bucket: str, router: str, epoch: int, named: Iterable[str] = ()) -> None:
        self.windows = UsageWindows()
        self.unsent: OrderedDict[str, Unsent] = OrderedDict()
        self.on_received: Callable[[UsageBatch], None] | None = None
        self.totals = {one: UsageSums() for one in (*sorted(set(named))[:MOST_TOTALS], OTHER)}
        self.bucket = bucket
        self.router = router
        self.missing = ""
        self._own = f"{bucket}/{router}-{epoch}-"
        self._open: dict[Consumer, UsageSums] = {}
        self._rows: deque[UsageRow] = deque()
        self._since = 0.0
        self._batches = self._received = self._refused = self._lost = 0
        self._stores = False

    def keep_unsent(self) -> None:
        """Keep batches for whoever stores them from now on."""
        self._stores = True

    def count(self, who: Consumer, usage: UsageSums) -> None:
        """Count what a request used that ended here."""
        sums = self._open.get(who)
        if sums is None:
            sums = self._open[who] = UsageSums()
        sums.add(usage)
        self.totals[who.tenant if who.tenant in self.totals else OTHER].add(usage)

    def flush(self, now: float) -> None:
        """Make batches of all that was counted; nothing where nothing was."""
        for _ in self.flush_some(now):
            pass

    def flush_some(self, now: float) -> Iterator[UsageBatch]:
        """Do as `flush`, and yield each batch, which is counted then: the rest may come later."""
        self._rows.extend(UsageRow(who, usage) for who, usage in self._open.items())
        self._open = {}
        since, self._since = self._since or now, now
        while self._rows:
            some = min(MOST_BATCHED, len(self._rows))
            rows = tuple(self._rows.popleft() for _ in range(some))
            self._batches += 1
            batch = UsageBatch(
                id=f"{self._own}{self._batches}",
                bucket=self.bucket,
                router=self.router,
                since=round(since, 3),
                until=round(now, 3),
                rows=rows,
            )
            self.windows.add(grouped(rows), batch.until, now)
            if self._stores:
                requests = sum(row.usage.requests for row in rows)
                self.unsent[batch.id] = Unsent(_encode(batch), requests)
                if len(self.unsent) > MOST_UNSENT:
                    self._lost += self.unsent.popitem(last=False)[1].requests
            yield batch

    def receive(self, router: str, data: bytes, now: float) -> str:
        """Count a batch that `router` stored, unless this life of the replica made it; return what
        is wrong with it, "" for nothing.
        """
        try:
            batch = _decode(data)
        except UNREADABLE as error:
            self._refused += 1
            return str(error)
        if batch.router != router:
            self._refused += 1
            return f"{shown(router)} tells of what {shown(batch.router)} served"
        if not batch.id.startswith(self._own):
            self._received += 1
            self.windows.add(grouped(batch.rows), batch.until, now)
            if self.on_received is not None:
                self.on_received(batch)
        return ""

    def warnings(self) -> tuple[str, ...]:
        """Return what the record lacks, one line at most."""
        lost = f"usage of {counted(self._lost, 'request')} is not recorded: its stream was away"
        return (lost,) if self._lost else ()

    def statistics(self) -> UsageStatistics:
        """Return the counts."""
        return UsageStatistics(
            batches=self._batches,
            received=self._received,
            refused=self._refused,
            lost_requests=self._lost,
            unsent=sum(one.requests for one in self.unsent.values()),
        )


class UsageSummary(msgspec.Struct, frozen=True):
    """Some windows summed up by one of `BY`: rows, the `others` that they had no room for, None
    where one tenant's are shown, and the `total` of all.
    """

    since: int
    rows: list[tuple[str, str, UsageSums]]
    others: UsageSums | None
    total: UsageSums


def summed(windows: Iterable[UsageWindow], by: By, tenant: str | None, now: float) -> UsageSummary:
    """Return windows by `by`, most tokens first; of one `tenant`, or of all. Names of two tenants
    are two rows, but of models.
    """
    merged: dict[tuple[str, str], UsageSums] = {}
    others, total, since = UsageSums(), UsageSums(), int(now)
    for window in windows:
        since = min(since, window.since)
        table = window.tables[by]
        for owner, name, sums in table.rows(tenant):
            place = ("" if by == "model" and tenant is None else owner, name)
            merged.setdefault(place, UsageSums()).add(sums)
        others.add(table.others)
        for sums in [window.total] if tenant is None else _of(window.tables["tenant"], tenant):
            total.add(sums)
    rows = [(owner, name, sums) for (owner, name), sums in merged.items()]
    rows.sort(key=lambda row: (-row[2].tokens, row[:2]))
    return UsageSummary(since, rows, others if tenant is None else None, total)


def _of(table: UsageTable, tenant: str) -> list[UsageSums]:
    return [sums for _, _, sums in table.rows(tenant)]
