"""One request on its way through the meta-router of a site, which may send it to another site."""

import time
from collections import deque
from typing import Final

from kvmesh.app.meta.bucket_plan import BucketPlan
from kvmesh.app.views.overview import Trip
from kvmesh.core.sites.sites import SiteRequest, Sites
from kvmesh.observe import get_logger
from kvmesh.transport.http.forward.plan import Forwarding, Outcome, Target, Wait
from kvmesh.transport.http.forward.resume import Going
from kvmesh.transport.http.upstream.client import UpstreamFailure
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem

FROM_SITE = b"x-kvmesh-from-site"
"""Of a request that another site's meta-router sent: it goes no farther."""

SITE = b"x-kvmesh-site"
SITE_WHY = b"x-kvmesh-site-why"


MOST_TRIPS: Final = 64


class OpenAway:
    """The requests at other sites: they go on elsewhere when theirs is lost. `trips` are the last
    that were answered there.
    """

    def __init__(self, sites: Sites) -> None:
        self.sites = sites
        self.trips = deque[Trip](maxlen=MOST_TRIPS)
        self._open: dict[str, dict[SitePlan, None]] = {name: {} for name in sites.doors()}

    def enter(self, site: str, plan: "SitePlan") -> None:
        """Note that a request is at a site."""
        self._open[site][plan] = None

    def leave(self, site: str, plan: "SitePlan") -> None:
        """Note that it is there no more."""
        self._open[site].pop(plan, None)

    def failed(self, site: str, failure: UpstreamFailure) -> None:
        """Take what it shows of a site that it failed a request: nobody else is sent to one whose
        door is gone, until it answers a probe.
        """
        get_logger().warning("site failed a request", site=site, error=failure.message)
        if failure.lost:
            self.sites.missed(site, certain=True)

    def lose(self, site: str) -> None:
        """Have what is at a lost site go on elsewhere."""
        failure = UpstreamFailure("after_send", "hung", f"site {site} is lost", site)
        for plan in list(self._open[site]):
            plan.forwarding.scope.enter(plan.forwarding.fail_attempt, failure)
            plan.forwarding.scope.enter(plan.forwarding.hand_over, failure)


class SitePlan:
    """The forwarding plan of one request that may leave its site: each attempt is `home`'s, or goes
    to the door of another site. A site that fails it is not tried again.
    """

    __slots__ = (
        "_asked", "_away", "_door", "_home", "_open", "_predicted_ms", "_seen", "_sent_s",
        "_tried", "_why", "forwarding",
    )  # fmt: skip

    cached_tokens: None = None
    due: None = None

    def __init__(
        self, open_away: OpenAway, asked: SiteRequest, home: BucketPlan, forwarding: Forwarding
    ) -> None:
        self.forwarding = forwarding
        self._open = open_away
        self._asked = asked
        self._home = home
        self._away = ""
        self._tried: set[str] = set()
        self._why = ""
        self._sent_s = self._predicted_ms = 0.0
        self._seen = False

    def next_target(self) -> Target | Problem | Wait | None:
        """Choose the site, and at home bucket and replica."""
        sites, asked, now = self._open.sites, self._asked, time.monotonic()
        self._leave()
        self._sent_s, self._seen = now, False
        if not self._home.takes(now):
            self._tried.add(sites.own)
        choice = sites.choose(asked, now, self._tried)
        site = sites.own if choice is None else choice.site
        self._predicted_ms = sites.predict_ms(asked, site, now)
        sites.note(asked, site, now)
        if choice is None:
            self._why = ""
            return self._home.next_target()
        self._why = choice.words()
        self._away = site
        self._open.enter(site, self)
        headers = ((FROM_SITE, sites.own.encode()),)
        door = sites.doors()[site]
        return Target(door, headers=headers, worker=f"site {site}", gives_ids=True)

    def on_attempt_failed(self, failure: UpstreamFailure) -> bool:
        """Leave the site out that failed the request; what that shows of a replica is `home`'s."""
        if not self._away:
            if failure.kind == "no_worker":
                self._tried.add(self._open.sites.own)
            return self._home.on_attempt_failed(failure)
        self._fail(failure)
        return True

    def lose(self, failure: UpstreamFailure) -> None:
        """Take what it shows that its stream was cut."""
        if self._away:
            self._fail(failure)
        else:
            self._home.lose(failure)

    def go_on(self, failure: UpstreamFailure, going: Going) -> bool:
        """Have another site, or replica, go on with a stream that this one lost, or leaves."""
        if not self._away:
            return self._home.go_on(failure, going)
        self._fail(failure)
        return True

    def on_head(self, status: int) -> Headers:
        """Name the site; that of another one names itself."""
        if self._away:
            name = self.forwarding.exchange.request_id.decode("latin-1")
            self._open.trips.append(Trip(name, self._away, self._why, time.time()))
            return ((SITE_WHY, self._why.encode()),)
        return (*self._home.on_head(status), (SITE, self._open.sites.own.encode()))

    def on_tokens(self, tokens: int) -> None:
        """Take when the first token comes: by how much the site was later than predicted."""
        if not self._seen:
            self._seen = True
            now, sites = time.monotonic(), self._open.sites
            took_ms = (now - self._sent_s) * 1000.0
            sites.first_token(self._away or sites.own, self._predicted_ms, took_ms, now)
        if not self._away:
            self._home.on_tokens(tokens)

    def on_finish(self, outcome: Outcome) -> None:
        """Learn the end."""
        away = self._away
        self._leave()
        if not away:
            self._home.on_finish(outcome)

    def _leave(self) -> None:
        if self._away:
            self._open.leave(self._away, self)
            self._away = ""

    def _fail(self, failure: UpstreamFailure) -> None:
        self._tried.add(self._away)
        self._open.failed(self._away, failure)
        self._leave()
