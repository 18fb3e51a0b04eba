"""Who used what: sums by tenant, key, model, session and program, in windows of time, bounded."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Meta

from kvmesh.bounds import MAX_COUNT, Count, Figure, MaybeName, Name

By = Literal["tenant", "key", "model", "session", "program"]
BY: Final[tuple[By, ...]] = get_args(By)

MOST_ROWS: Final = 512
"""Rows of one window by one of `BY`; what is beyond is summed up as `others`. All windows full of
made-up names take 52 MB.
"""

EVICTED: Final = 32
"""Rows that are summed up at a time: to find whose takes as long as there are tenants."""

MOST_BATCHED: Final = 256
"""Rows of one batch: 200 KB of JSON at most, counted in some 3 ms."""

MOST_SHOWN: Final = 128
"""Characters kept of a name that a client chose."""

MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 86_400
KEPT: Final[Mapping[int, int]] = {MINUTE_S: 2, HOUR_S: 25, DAY_S: 8}
"""Windows kept by their length in seconds, the present one included."""

MAX_AHEAD_S: Final = 60.0
"""A batch that ended so much later than now is some clock's mistake: it counts as of now."""


class UsageSums(msgspec.Struct):
    """What requests used. `errors` of them got no whole answer, though their client waited for it.

    `cached_tokens` of `prompt_tokens` were not computed. `engine_ms` is the time from the choice of
    a worker to the end, all attempts included.
    """

    requests: Count = 0
    errors: Count = 0
    prompt_tokens: Count = 0
    cached_tokens: Count = 0
    output_tokens: Count = 0
    engine_ms: Count = 0

    def add(self, other: "UsageSums") -> None:
        """Add the sums of `other`; none grows beyond `MAX_COUNT`."""
        self.requests = min(MAX_COUNT, self.requests + other.requests)
        self.errors = min(MAX_COUNT, self.errors + other.errors)
        self.prompt_tokens = min(MAX_COUNT, self.prompt_tokens + other.prompt_tokens)
        self.cached_tokens = min(MAX_COUNT, self.cached_tokens + other.cached_tokens)
        self.output_tokens = min(MAX_COUNT, self.output_tokens + other.output_tokens)
        self.engine_ms = min(MAX_COUNT, self.engine_ms + other.engine_ms)

    @property
    def tokens(self) -> int:
        """Return the tokens that limits count: prompt and output."""
        return self.prompt_tokens + self.output_tokens


class Consumer(msgspec.Struct, frozen=True):
    """Who used something: `key` is a key's name, `session` and `program` are hashes."""

    tenant: MaybeName = ""
    key: MaybeName = ""
    model: MaybeName = ""
    session: MaybeName = ""
    program: MaybeName = ""


class UsageRow(msgspec.Struct, frozen=True):
    """What one consumer used."""

    who: Consumer
    usage: UsageSums


class UsageBatch(msgspec.Struct, frozen=True):
    """What ended at one replica between two Unix times. `id` is the same wherever and however often
    it is read.
    """

    id: Name
    bucket: MaybeName
    router: MaybeName
    since: Figure
    until: Figure
    rows: Annotated[tuple[UsageRow, ...], Meta(max_length=MOST_BATCHED)]


class UsageTable:
    """Sums by (tenant, name): at most `most` of them, and `others`, the sum of all that gave way.

    The rows that were not used for longest give way of the tenant that has most: a client that
    makes up names pushes out its own.
    """

    def __init__(self, most: int = MOST_ROWS) -> None:
        self.others = UsageSums()
        self._most = most
        self._count = 0
        self._tenants: OrderedDict[str, OrderedDict[str, UsageSums]] = OrderedDict()

    def __len__(self) -> int:
        return self._count

    def add(self, tenant: str, name: str, sums: UsageSums) -> None:
        """Count for a row, made if it is not there."""
        names = self._tenants.get(tenant)
        row = None if names is None else names.get(name)
        if row is None or names is None:
            if self._count >= self._most:
                self._evict()
            names = self._tenants.setdefault(tenant, OrderedDict())
            row = names[name] = UsageSums()
            self._count += 1
        names.move_to_end(name)
        self._tenants.move_to_end(tenant)
        row.add(sums)

    def rows(self, tenant: str | None = None) -> Iterable[tuple[str, str, UsageSums]]:
        """Yield (tenant, name, sums) of every row, or of those of one tenant."""
        for owner, names in self._tenants.items():
            if tenant is None or owner == tenant:
                for name, sums in names.items():
                    yield owner, name, sums

    def _evict(self) -> None:
        """Sum up about `EVICTED` rows of the tenants that have most."""
        most, left = max(map(len, self._tenants.values())), EVICTED
        for tenant in [one for one, names in self._tenants.items() if len(names) == most]:
            names = self._tenants[tenant]
            for _ in range(min(left, (most + 1) // 2)):
                self.others.add(names.popitem(last=False)[1])
                self._count -= 1
                left -= 1
            if not names:
                del self._tenants[tenant]
            if not left:
                break


Groups = Mapping[By, Mapping[tuple[str, str], UsageSums]]


def grouped(rows: Iterable[UsageRow]) -> Groups:
    """Return the sums of rows by each of `BY`, then by (tenant, name); names of "" are left out but
    those of tenants.
    """
    found: dict[By, dict[tuple[str, str], UsageSums]] = {by: {} for by in BY}
    for row in rows:
        who = row.who
        for by in BY:
            name = getattr(who, by)
            if name or by == "tenant":
                place = found[by].get((who.tenant, name))
                if place is None:
                    place = found[by][who.tenant, name] = UsageSums()
                place.add(row.usage)
    return found


class UsageWindow:
    """What was used from Unix second `since` on, for as long as the window is: `total` is of all.

    The sum of a table's rows and its `others` is that of all requests that bore such a name.
    """

    def __init__(self, since: int, most: int = MOST_ROWS) -> None:
        self.since = since
        self.total = UsageSums()
        self.tables = {by: UsageTable(most) for by in BY}

    def add(self, groups: Groups) -> None:
        """Count what `grouped` returned."""
        for by, names in groups.items():
            table = self.tables[by]
            for (tenant, name), sums in names.items():
                table.add(tenant, name, sums)
        for sums in groups["tenant"].values():
            self.total.add(sums)


class UsageWindows:
    """The last minutes, hours and days, as `KEPT` says; times are Unix seconds, days those of UTC.

    A batch counts where it ends; older than what is kept it counts nowhere.
    """

    def __init__(self, most: int = MOST_ROWS) -> None:
        self._most = most
        self._kept: dict[int, dict[int, UsageWindow]] = {length_s: {} for length_s in KEPT}

    def add(self, groups: Groups, until: float, now: float) -> None:
        """Count what `grouped` returned of a batch that ended at `until`."""
        if until > now + MAX_AHEAD_S:
            until = now
        for length_s, windows in self._kept.items():
            since = int(until) // length_s * length_s
            oldest = int(now) // length_s * length_s - (KEPT[length_s] - 1) * length_s
            for old in [one for one in windows if one < oldest]:
                del windows[old]
            if since < oldest:
                continue
            window = windows.get(since)
            if window is None:
                window = windows[since] = UsageWindow(since, self._most)
            window.add(groups)

    def since(self, asked: float, now: float) -> list[UsageWindow]:
        """Return the windows of the finest length that is kept for as long as `asked` is ago, from
        the one that `asked` lies in; of days the oldest that is kept, if that is longer ago.
        """
        first, windows = 0, self._kept[DAY_S]
        for length_s, kept in KEPT.items():
            first, windows = int(asked) // length_s * length_s, self._kept[length_s]
            if first > int(now) // length_s * length_s - kept * length_s:
                break
        return [windows[one] for one in sorted(windows) if one >= first]
