"""What a meta-router has for other sites: who they are, whether they answer, who goes there."""

import asyncio
import time
from collections.abc import Coroutine, Iterator, Mapping
from functools import partial
from typing import Final

from kvmesh.actors.meta_router import MetaRouter
from kvmesh.actors.site_reporter import SiteReporter
from kvmesh.app.members.warning_lines import by_reason
from kvmesh.app.meta.bucket_plan import BucketPlan
from kvmesh.app.meta.site_plan import FROM_SITE, OpenAway, SitePlan
from kvmesh.app.views.figure import Labels, Source
from kvmesh.app.views.front_figures import SITE_DIGESTS, SITES
from kvmesh.app.views.overview import SitesStatus
from kvmesh.core.admission.access import RESIDENCY_HEADER, tenant_of
from kvmesh.core.buckets.conversations import find_beginnings
from kvmesh.core.buckets.rules import BucketRequest
from kvmesh.core.sites.sites import MOST_SITES, SiteRequest, Sites, SiteView
from kvmesh.errors import ConfigError, RequestError, SlowError, TransportError
from kvmesh.observe import get_logger
from kvmesh.settings.member_name import check_name
from kvmesh.settings.roles import MetaRouterSettings, NatsSettings
from kvmesh.tasks import attempt, keep_running
from kvmesh.transport.http.fetch import fetch
from kvmesh.transport.http.forward.plan import Forwarding, ForwardPlan
from kvmesh.transport.http.forward.resume import STREAM_ID
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.upstream.client import UpstreamPool

PROBE_S: Final = 1.0
TRAVEL: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/messages"})
"""Paths whose requests leave nothing behind that a later one names."""


def parse_doors(settings: MetaRouterSettings) -> dict[str, str]:
    """Return the doors of the other sites by name. Raises `ConfigError`."""
    wanted, doors = settings.sites, dict[str, str]()
    if not wanted.site:
        if wanted.peer_site:
            raise ConfigError(f"--peer-site {wanted.peer_site[0]!r}: name this one, too: --site")
        return doors
    own = check_name(wanted.site, "--site")
    for text in wanted.peer_site:
        name, _, url = text.partition("=")
        check_name(name, f"--peer-site {text!r}:")
        if name == own or name in doors:
            raise ConfigError(f"--peer-site {text!r}: {name} is named twice, or is --site itself")
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--peer-site {text!r}: write NAME=http://host:port")
        doors[name] = url.rstrip("/")
    if len(doors) >= MOST_SITES:
        raise ConfigError(f"--peer-site: {len(doors)} of them; a mesh has {MOST_SITES} sites")
    if settings.replica:
        raise ConfigError(f"--site {own} --replica: sites hear of each other over NATS; drop one")
    if settings.nats.namespace == NatsSettings.namespace:
        raise ConfigError(
            f"--site {own}: its mesh needs a --namespace of its own, e.g. {own}, at its routers "
            "and sidecars, too: else a leaf node would make one mesh of two"
        )
    return doors


def check_residency(request: Request, own: str) -> None:
    """Raise `RequestError` 403 for a request whose data may not be at the site `own`; "" is a door
    that knows of no sites, and so may be anywhere.
    """
    residency = _residency(request)
    if residency and own not in residency:
        place = f"is in {own}" if own else "has no --site"
        raise RequestError(
            f"the data of this key stays in {', '.join(residency)}: send it to a door there, "
            f"this one {place}",
            status=403,
        )


class SitePart:
    """One meta-router's part; `doors` are the other sites' front doors by name.

    `run` asks them each second: by that it knows how far away they are, and when one is lost.
    """

    def __init__(
        self, settings: MetaRouterSettings, doors: Mapping[str, str], meta: MetaRouter, door: str
    ) -> None:
        self.sites = Sites(settings.sites.site, doors)
        self.away = OpenAway(self.sites)
        self.reporter = SiteReporter(
            self.sites, door, meta.table.loads, meta.ready, settings.sites.site_digest_bytes
        )
        self._meta = meta
        self._words = dict.fromkeys(doors, "")

    def plan(
        self, request: Request, wanted: BucketRequest, home: BucketPlan, forwarding: Forwarding
    ) -> ForwardPlan:
        """Return the plan of a request that may be served here: `home`, where it stays."""
        if request.path not in TRAVEL or wanted.asks:
            return home
        residency = _residency(request)
        now, keys = time.monotonic(), wanted.keys
        beginnings = find_beginnings(keys, wanted.prompt_start)
        if not residency:
            self.reporter.hot.note(beginnings, now)
        stays = (
            bool(wanted.bucket or wanted.workers)
            or request.header(FROM_SITE) is not None
            or request.header(STREAM_ID) is not None
        )
        asked = SiteRequest(
            wanted.model,
            wanted.prompt_chars,
            beginnings,
            keys.ends,
            (self.sites.own,) if stays else residency,
        )
        self.sites.take_own(self._meta.table.loads(now), now)
        return SitePlan(self.away, asked, home, forwarding)

    def running(self, pool: UpstreamPool) -> Coroutine[None, None, None]:
        """Return what must run for as long as the meta-router serves."""
        return keep_running("ask other sites", partial(self._ask, pool))

    async def _ask(self, pool: UpstreamPool) -> None:
        """Ask every door each second, for ever."""
        async with asyncio.TaskGroup() as group:
            while True:
                for site, door in self.sites.doors().items():
                    probe = partial(self._probe, pool, site, door)
                    group.create_task(attempt("ask another site", probe))
                await asyncio.sleep(PROBE_S)

    async def _probe(self, pool: UpstreamPool, site: str, door: str) -> None:
        lost, began_s = False, time.monotonic()
        try:
            await fetch(pool, door, "/health", timeout_s=PROBE_S)
            self.sites.answered(site, (time.monotonic() - began_s) * 1000.0)
        except SlowError:
            lost = self.sites.missed(site)
        except TransportError:
            lost = self.sites.missed(site, certain=True)
        if lost:
            self.away.lose(site)
        self._log(site)

    def _log(self, site: str) -> None:
        """Say it once when a site is lost, or is back."""
        why = self.sites.why_not(site, time.monotonic())
        before, self._words[site] = self._words[site], why
        if why and why != before:
            get_logger().warning("site gets no requests", site=site, why=why)
        elif before and not why:
            get_logger().info("site may get requests", site=site)

    def warnings(self) -> tuple[str, ...]:
        """Return the sites that no request goes to, a line each reason."""
        out = ((site, why) for site, why in self._words.items() if why)
        return by_reason(out, "is a site that gets no requests")

    def status(self) -> SitesStatus:
        """Return the other sites for people."""
        view = self.sites.view(time.monotonic())
        told = self.reporter.told_bytes
        return SitesStatus(self.sites.own, self.sites.stayed, told, view, list(self.away.trips))

    def figures(self) -> Iterator[Source]:
        """Yield what is counted of sites."""
        yield SITES.of_each(self._rows)
        yield SITE_DIGESTS.of(lambda: self.reporter)

    def _rows(self) -> dict[Labels, SiteView]:
        return {(one.site,): one for one in self.sites.view(time.monotonic())}


def _residency(request: Request) -> tuple[str, ...]:
    """Return the sites that a request may be served at, none: any. Raises `RequestError` for two
    headers.
    """
    if request.header(RESIDENCY_HEADER) is None:
        return ()
    return tuple(tenant_of(request.headers, RESIDENCY_HEADER).replace(",", " ").split())
