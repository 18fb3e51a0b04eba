"""The sites that a router may send requests to: what each told, how far away it is, what it got."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from math import exp2
from typing import Final

import msgspec

from kvmesh.core.buckets.beginnings import Beginning
from kvmesh.core.buckets.homes import MOST_HOMES, HomeOptions, Homes
from kvmesh.core.buckets.spill import CHARS_PER_TOKEN, BucketHeat, BucketLoad, lightest
from kvmesh.core.sites.site_price import Offer, SiteChoice, choose_site, prices

MOST_SITES: Final = MOST_HOMES
"""Sites of a mesh, the own one among them."""

STALE_S: Final = 2.5
"""Digests come each second: a site that was silent for longer is cut off, or gone."""

MISSES: Final = 2
"""Probes in a row without an answer, one a second, after which a site is lost."""

MOST_HOT: Final = 1024
"""Keys of beginnings that are taken of a site in a second, 8 KiB of its digests: who forges these
can neither have what is known of all sites forgotten at once, nor a meta-router do nothing else.
"""

_SAMPLES: Final = 8
_UNREPORTED: Final = 256
"""Requests on their way to a site that are told apart from those that it has reported."""

_LATE_S: Final = 5.0
"""What a first token taught so long ago counts half."""

_PRIOR_MS: Final = 500.0
"""So much of the time of first tokens is taken to have been predicted rightly."""

_MODELS: Final = 256
"""Models whose backlog is followed between reports: clients name them."""

_HOMES: Final = HomeOptions(ttl_s=600.0, max_homes=1 << 16, shared=False)
"""What a site got so long ago is hardly cached there."""


class SiteRequest(msgspec.Struct, frozen=True):
    """What is known of a request: `beginnings` of its prompt, the shortest first, `ends` of its
    earlier turns, the newest first and its own at the front; `residency` are the sites that it may
    be served at, none named: any.
    """

    model: str = ""
    prompt_chars: int = 0
    beginnings: Sequence[Beginning] = ()
    ends: Sequence[int] = ()
    residency: Collection[str] = ()

    def may(self, site: str) -> bool:
        """Return whether it may be served there."""
        return not self.residency or site in self.residency


class SiteView(msgspec.Struct, frozen=True):
    """One other site for people. `why_not`: why nothing goes there, "" where it may; `rtt_ms` None:
    it has not answered. `heard_s` is the age of its last digest, None before the first.
    """

    site: str
    door: str
    why_not: str
    rtt_ms: float | None
    heard_s: float | None
    backlog_ms: float
    workers: int
    sent: int


class _Backlog:
    """A site's least backlog for a model, ms, as it has drained and grown since it was reported."""

    def __init__(self, ms: float, now: float) -> None:
        self._ms, self._at_s = ms, now
        self._sent = deque[tuple[float, float]](maxlen=_UNREPORTED)

    def ms(self, now: float) -> float:
        return max(0.0, self._ms - (now - self._at_s) * 1000.0)

    def add(self, ms: float, now: float) -> None:
        self._ms, self._at_s = self.ms(now) + ms, now
        self._sent.append((now, ms))

    def report(self, ms: float, now: float, since_s: float) -> None:
        """Take a report, which has nothing of what was sent after `since_s`."""
        self._ms, self._at_s = ms + sum(sent for at_s, sent in self._sent if at_s > since_s), now


class _Late:
    """By how much first tokens of a site come later than predicted: the sums of both, decayed."""

    def __init__(self) -> None:
        self._took_ms = self._said_ms = self._at_s = 0.0

    def note(self, took_ms: float, said_ms: float, now: float) -> None:
        kept = self._kept(now)
        self._took_ms = self._took_ms * kept + took_ms
        self._said_ms = self._said_ms * kept + said_ms
        self._at_s = now

    def factor(self, now: float, prior: float = 1.0) -> float:
        kept = self._kept(now)
        took, said = self._took_ms * kept + _PRIOR_MS * prior, self._said_ms * kept + _PRIOR_MS
        return max(1.0, took / said)

    def _kept(self, now: float) -> float:
        return exp2(-max(0.0, now - self._at_s) / _LATE_S)


class _Site:
    """One site: its last digest, and what it was sent since; of another one its door, too."""

    def __init__(self, door: str = "") -> None:
        self.door = door
        self.heard_s: float | None = None
        self.ready = False
        self.loads: Sequence[BucketLoad] = ()
        self.rtts_ms: deque[float] = deque(maxlen=_SAMPLES)
        self.misses = 0
        self.sent = 0
        self.late = _Late()
        self._hot_since_s, self._hot_left = 0.0, MOST_HOT
        self._backlogs: dict[str, _Backlog] = {}

    @property
    def lost(self) -> bool:
        return not self.rtts_ms or self.misses >= MISSES

    @property
    def rtt_ms(self) -> float:
        return min(self.rtts_ms, default=0.0)

    def is_heard(self, now: float) -> bool:
        return self.heard_s is not None and now - self.heard_s <= STALE_S

    def admit(self, hot: Sequence[int], now: float) -> Sequence[int]:
        """Return those keys that are still taken in this second."""
        if now - self._hot_since_s >= 1.0:
            self._hot_since_s, self._hot_left = now, MOST_HOT
        taken = hot[: self._hot_left]
        self._hot_left -= len(taken)
        return taken

    def report(self, loads: Sequence[BucketLoad], now: float) -> None:
        self.heard_s, self.loads = now, loads
        since_s = now - self.rtt_ms / 1000.0
        for model, backlog in self._backlogs.items():
            heat = lightest(loads, model)
            backlog.report(0.0 if heat is None else heat.backlog_ms, now, since_s)

    def wait_ms(self, model: str, heat: BucketHeat, now: float) -> float:
        known = self._backlogs.get(model)
        return heat.backlog_ms if known is None else known.ms(now)

    def grow(self, model: str, heat: BucketHeat, tokens: float, now: float) -> None:
        """Add the prefill of a request that is sent there."""
        known = self._backlogs.get(model)
        if known is None:
            if len(self._backlogs) >= _MODELS:
                self._backlogs.clear()
            known = self._backlogs[model] = _Backlog(heat.backlog_ms, now)
        known.add(tokens * heat.ms_per_token / max(1, heat.workers), now)


class Sites:
    """Chooses the site of a request. `doors` are the other sites, by name; a digest of any other is
    refused, so that whoever may publish one cannot name where prompts go.
    """

    def __init__(self, own: str, doors: Mapping[str, str]) -> None:
        self.own = own
        self.stayed = 0
        self._homes = Homes(_HOMES)
        self._home = _Site()
        self._sites = {name: _Site(door) for name, door in sorted(doors.items())}

    def doors(self) -> dict[str, str]:
        """Return where the other sites are."""
        return {name: one.door for name, one in self._sites.items()}

    def take(
        self, site: str, loads: Sequence[BucketLoad], hot: Sequence[int], now: float, *, ready: bool
    ) -> bool:
        """Take what a site told, or another door of the own one; False: it is none of ours."""
        known = self._sites.get(site)
        if known is not None:
            known.ready = ready
            known.report(loads, now)
        elif site != self.own:
            return False
        for key in (known or self._home).admit(hot, now):
            self._homes.note(key, site, now)
        return True

    def take_own(self, loads: Sequence[BucketLoad], now: float) -> None:
        """Take how busy the buckets here are, as often as that may have changed."""
        if loads != self._home.loads:
            self._home.report(loads, now)

    def answered(self, site: str, rtt_ms: float) -> None:
        """Note that a site's door answered a probe, after so long."""
        known = self._sites[site]
        if known.lost:
            known.rtts_ms.clear()
        known.misses = 0
        known.rtts_ms.append(rtt_ms)

    def missed(self, site: str, *, certain: bool = False) -> bool:
        """Note that a door did not answer, or, `certain`, that nobody is there; return whether the
        site is lost by that.
        """
        known = self._sites[site]
        before = known.lost
        known.misses += MISSES if certain else 1
        return known.lost and not before

    def choose(
        self, asked: SiteRequest, now: float, tried: Collection[str] = ()
    ) -> SiteChoice | None:
        """Return the site that a request goes to, None: it stays. The `tried` ones have failed it.

        O(sites + keys of the prompt).
        """
        known = self.known_chars(asked, now)
        names = [one for one in self._sites if one not in tried and asked.may(one)]
        offers = [self._offer(one, asked, known, now) for one in names]
        home = None
        if self.own not in tried and asked.may(self.own):
            home = self._priced(self.own, self._home, asked, known, now)
        others = [one for one in offers if one is not None]
        if home is None and not others:
            # Nobody knows how it is there, but that it is there.
            others = [
                Offer(one, 0.0, 0.0, 0, self._sites[one].rtt_ms)
                for one in names
                if not (self._sites[one].lost or self._sites[one].is_heard(now))
            ]
        return choose_site(home, others, asked.prompt_chars)

    def note(self, asked: SiteRequest, site: str, now: float) -> None:
        """Remember that a request goes to a site, the own one or another."""
        away = self._sites.get(site)
        found = away or self._home
        heat = lightest(found.loads, asked.model)
        if heat is not None:
            lacking = max(0, asked.prompt_chars - self.known_chars(asked, now).get(site, 0))
            found.grow(asked.model, heat, lacking / CHARS_PER_TOKEN, now)
        if away is None:
            self.stayed += 1
        else:
            away.sent += 1
        for one in asked.beginnings:
            self._homes.note(one.key, site, now)
        if asked.ends:
            self._homes.note(asked.ends[0], site, now, ended=True)

    def predict_ms(self, asked: SiteRequest, site: str, now: float) -> float:
        """Return when its first token is predicted at a site, by what that tells alone; 0 where
        nobody there can take it.
        """
        found = self._sites.get(site, self._home)
        offer = self._priced(site, found, asked, self.known_chars(asked, now), now)
        if offer is None:
            return 0.0
        return prices([msgspec.structs.replace(offer, late=1.0)], asked.prompt_chars)[0].total_ms

    def first_token(self, site: str, predicted_ms: float, took_ms: float, now: float) -> None:
        """Take how long a request waited for its first token, as its client saw it."""
        self._sites.get(site, self._home).late.note(took_ms, predicted_ms, now)

    def known_chars(self, asked: SiteRequest, now: float) -> dict[str, int]:
        """Return how much of a prompt each site got before; of an earlier turn all of it."""
        known: dict[str, int] = {}
        for one in asked.beginnings:
            known |= dict.fromkeys(self._homes.find(one.key, now), one.chars)
        turns = (self._homes.find_end(key, now) for key in asked.ends[1:])
        last = next((found for found in turns if found), ())
        return known | dict.fromkeys(last, asked.prompt_chars)

    def view(self, now: float) -> list[SiteView]:
        """Return every other site for people, sorted by name."""
        return [self._view(name, one, now) for name, one in self._sites.items()]

    def why_not(self, site: str, now: float) -> str:
        """Return why no request goes to a site, "" where one may."""
        known = self._sites[site]
        if not known.rtts_ms:
            return "its door has not answered yet"
        if known.lost:
            return "its door does not answer"
        if not known.is_heard(now):
            return "its digests do not come"
        return "" if known.ready else "it has no ready router"

    def _view(self, name: str, one: _Site, now: float) -> SiteView:
        heat = lightest(one.loads, "") or BucketHeat(workers=0)
        return SiteView(
            site=name,
            door=one.door,
            why_not=self.why_not(name, now),
            rtt_ms=None if not one.rtts_ms else one.rtt_ms,
            heard_s=None if one.heard_s is None else now - one.heard_s,
            backlog_ms=heat.backlog_ms,
            workers=sum(load.heat.workers for load in one.loads),
            sent=one.sent,
        )

    def _offer(
        self, site: str, asked: SiteRequest, known: Mapping[str, int], now: float
    ) -> Offer | None:
        if self.why_not(site, now):
            return None
        # Of a site that nothing was sent to of late it is not known whether predictions are right
        # there: if they are not here, it is taken to be no better, or all would go there.
        late = self._home.late.factor(now)
        return self._priced(site, self._sites[site], asked, known, now, late)

    @staticmethod
    def _priced(
        name: str,
        site: _Site,
        asked: SiteRequest,
        known: Mapping[str, int],
        now: float,
        late: float = 1.0,
    ) -> Offer | None:
        heat = lightest(site.loads, asked.model)
        if heat is None:
            return None
        wait_ms = site.wait_ms(asked.model, heat, now)
        late, chars = site.late.factor(now, late), known.get(name, 0)
        return Offer(name, wait_ms, heat.ms_per_token, chars, site.rtt_ms, late)
