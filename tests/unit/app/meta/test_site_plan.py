"""Requests of a site: where they are served, and what their plans make of failures."""

import asyncio
import time
from typing import Any

import pytest

from kvmesh.actors.messages import BusMessage, RouterHeartbeat
from kvmesh.actors.meta_router import MetaRouter
from kvmesh.actors.wire import encode
from kvmesh.app.members.failure_care import FailureCare
from kvmesh.app.meta import site_part
from kvmesh.app.meta.bucket_plan import BucketPlan
from kvmesh.app.meta.site_part import SitePart, check_residency, parse_doors
from kvmesh.app.meta.site_plan import SITE, SITE_WHY, SitePlan
from kvmesh.app.serve.request_ends import RequestEnds
from kvmesh.core.buckets.beginnings import text_keys
from kvmesh.core.buckets.rules import BucketRequest
from kvmesh.core.buckets.spill import BucketHeat, BucketLoad
from kvmesh.errors import ConfigError, RequestError, SlowError, TransportError
from kvmesh.settings.roles import MetaRouterSettings, NatsSettings, SiteSettings
from kvmesh.transport.http.forward.plan import Outcome, Target
from kvmesh.transport.http.forward.resume import Going
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.upstream.messages import UpstreamFailure
from kvmesh.transport.http.wire.headers import Headers
from tests.unit.app.members.test_open_streams import Flowing
from tests.unit.transport.http.forward.told_events import Asked

FREE = BucketHeat(0.0, 0.1, 2)
FULL = BucketHeat(9000.0, 0.1, 2)
CUT = UpstreamFailure("mid_response", "truncated", "closed", "http://us")
REFUSED = UpstreamFailure("before_send", "refused", "refused", "http://us")
WORKERLESS = UpstreamFailure("mid_response", "no_worker", "none", "http://r0", 503)
GOING = Going(Asked(), None, 3)
CHAT = "/v1/chat/completions"


def settings(**more: Any) -> MetaRouterSettings:
    options = {"site": "eu", "peer_site": ("us=http://us/",)} | more
    nats = NatsSettings(namespace="eu")
    return MetaRouterSettings(sites=SiteSettings(**options), nats=nats)


class Way(Flowing):
    def __init__(self) -> None:
        super().__init__("")
        self.exchange = Asked()
        self.failed: list[str] = []

    def fail_attempt(self, failure: UpstreamFailure) -> None:
        self.failed.append(failure.message)


class Door:
    """The meta-router of site eu, with one replica that is `heat`; us is free, 80 ms away."""

    def __init__(self, heat: BucketHeat = FULL) -> None:
        self.meta = MetaRouter("eu")
        now = time.monotonic()
        beat = RouterHeartbeat(
            router="r0", bucket="b", url="http://r0", ready=True, epoch=1, heat=heat
        )
        self.meta.receive(BusMessage("eu.rt.b.r0", encode(beat)), now)
        wanted = settings()
        self.part = SitePart(wanted, parse_doors(wanted), self.meta, "door")
        self.part.sites.answered("us", 80.0)
        self.part.sites.take("us", [BucketLoad((), FREE)], (), now, ready=True)
        membership = self.meta.table.membership
        self.care = FailureCare("replica", membership, lambda _: None, 0.0, time.monotonic)

    def plan(
        self, path: str = CHAT, *, headers: Headers = (), text: str = "Hello", **more: Any
    ) -> Any:
        way = Way()
        wanted = BucketRequest(prompt_chars=len(text), keys=text_keys(0, text), **more)
        home = BucketPlan(self.meta, wanted, self.care, RequestEnds(), way)
        return self.part.plan(Request("POST", path.encode(), headers, b""), wanted, home, way)


def origin(plan: Any) -> str:
    found = plan.next_target()
    assert isinstance(found, Target), found
    return found.origin


def sites_plan(door: Door, **more: Any) -> tuple[SitePlan, Way]:
    way = Way()
    wanted = BucketRequest(prompt_chars=400, keys=text_keys(0, "Hello"), **more)
    home = BucketPlan(door.meta, wanted, door.care, RequestEnds(), way)
    plan = door.part.plan(Request("POST", CHAT.encode(), (), b""), wanted, home, way)
    assert isinstance(plan, SitePlan)
    return plan, way


def test_a_request_goes_away_from_a_full_site_and_says_why() -> None:
    door = Door()
    plan, _ = sites_plan(door)

    target = plan.next_target()

    assert isinstance(target, Target)
    assert (target.origin, target.worker) == ("http://us", "site us")
    assert target.headers == ((b"x-kvmesh-from-site", b"eu"),)
    ((name, why),) = plan.on_head(200)
    assert name == SITE_WHY
    assert why.startswith(b"full: home 90")
    plan.on_tokens(1)
    plan.on_tokens(20)
    plan.on_finish(Outcome("finished", 200, 1))
    status = door.part.status()
    assert (status.site, status.stayed, status.sites[0].sent) == ("eu", 0, 1)
    assert [(one.request, one.site) for one in status.trips] == [("q", "us")]


def test_a_request_of_a_free_site_stays() -> None:
    door = Door(FREE)
    plan, _ = sites_plan(door)

    assert origin(plan) == "http://r0"
    assert plan.on_head(200) == ((SITE, b"eu"),)
    plan.on_tokens(1)
    plan.on_finish(Outcome("finished", 200, 1))
    assert door.part.status().stayed == 1


@pytest.mark.parametrize(
    "headers",
    [
        ((b"x-kvmesh-from-site", b"us"),),
        ((b"x-kvmesh-stream-id", b"s"),),
        ((b"x-kvmesh-residency", b"eu"),),
        ((b"x-kvmesh-residency", b"eu, ap"),),
    ],
)
def test_what_was_sent_here_has_a_name_here_or_must_stay_stays(headers: Headers) -> None:
    assert origin(Door().plan(headers=headers)) == "http://r0"


def test_so_does_what_names_a_bucket_only_asks_or_leaves_something_behind() -> None:
    assert origin(Door().plan(bucket="b")) == "http://r0"
    assert origin(Door().plan("/v1/responses")) == "http://r0"
    assert isinstance(Door().plan(asks=True), BucketPlan)


def test_hot_beginnings_of_who_must_stay_are_told_nobody() -> None:
    door = Door(FREE)
    for _ in range(3):
        door.plan(headers=((b"x-kvmesh-residency", b"eu"),))
    assert len(door.part.reporter.hot) == 0

    door.plan()

    assert len(door.part.reporter.hot) == 1


def test_data_that_may_not_be_here_is_refused() -> None:
    def of(*values: bytes) -> Request:
        said = tuple((b"x-kvmesh-residency", value) for value in values)
        return Request("POST", CHAT.encode(), said, b"")

    check_residency(of(b"us,eu"), "eu")
    check_residency(of(), "eu")
    check_residency(of(), "")
    with pytest.raises(RequestError, match=r"stays in us: send it to .* is in eu") as caught:
        check_residency(of(b"us"), "eu")
    with pytest.raises(RequestError, match="this one has no --site") as nowhere:
        check_residency(of(b"us"), "")
    with pytest.raises(RequestError, match="2 headers x-kvmesh-residency") as twice:
        check_residency(of(b"eu", b"us"), "eu")
    assert [one.value.status for one in (caught, nowhere, twice)] == [403, 403, 400]


def test_a_site_that_fails_a_request_is_left_for_home_and_gets_no_other() -> None:
    door = Door()
    plan, _ = sites_plan(door)

    assert origin(plan) == "http://us"
    assert plan.on_attempt_failed(REFUSED)
    assert origin(plan) == "http://r0"
    assert door.part.sites.why_not("us", time.monotonic()) == "its door does not answer"
    assert origin(sites_plan(door)[0]) == "http://r0"


def test_one_that_only_answers_badly_is_not_lost() -> None:
    door = Door()
    plan, _ = sites_plan(door)
    plan.next_target()

    plan.on_attempt_failed(UpstreamFailure("mid_response", "status", "503", "http://us", 503))

    assert door.part.sites.why_not("us", time.monotonic()) == ""
    assert origin(plan) == "http://r0"


def test_a_stream_that_loses_its_site_goes_on_at_home_and_back() -> None:
    door = Door()
    plan, _ = sites_plan(door)
    plan.next_target()
    plan.on_head(200)

    assert plan.go_on(CUT, GOING)
    assert origin(plan) == "http://r0"
    plan.on_head(200)
    assert plan.go_on(CUT, GOING)
    plan.lose(CUT)
    plan.on_finish(Outcome("cut", 200, 2, CUT))


def test_one_that_only_lacks_its_end_shows_the_same_of_its_site() -> None:
    door = Door()
    plan, _ = sites_plan(door)
    plan.next_target()

    plan.lose(CUT)

    assert origin(plan) == "http://r0"


def test_a_site_whose_routers_have_no_worker_sends_its_requests_away() -> None:
    door = Door(FREE)
    plan, _ = sites_plan(door)

    assert origin(plan) == "http://r0"
    assert plan.on_attempt_failed(WORKERLESS)
    assert origin(plan) == "http://us"
    assert origin(sites_plan(door)[0]) == "http://us"


def test_where_nobody_can_take_it_the_own_site_says_so() -> None:
    door = Door(FREE)
    door.part.sites.missed("us", certain=True)
    plan, _ = sites_plan(door, model="m")
    plan.next_target()
    plan.on_attempt_failed(REFUSED)

    found = plan.next_target()

    assert not isinstance(found, Target)


def test_what_is_at_a_site_that_is_lost_goes_on_elsewhere() -> None:
    door = Door()
    plan, way = sites_plan(door)
    plan.next_target()

    door.part.away.lose("us")

    assert way.failed == ["site us is lost"]
    assert way.moved == [("hung", "us")]


async def test_doors_are_asked_and_what_changes_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door()
    answers: list[Exception | None] = [None]
    plan, way = sites_plan(door)
    plan.next_target()

    async def fetch(*_: object, **__: object) -> None:
        if (error := answers[0]) is not None:
            raise error

    monkeypatch.setattr(site_part, "fetch", fetch)
    monkeypatch.setattr(site_part, "PROBE_S", 0.001)
    pool: Any = None
    asking = asyncio.ensure_future(door.part.running(pool))
    sites = door.part.sites

    async def until(why: str) -> None:
        async with asyncio.timeout(20):
            while sites.why_not("us", time.monotonic()) != why:  # noqa: ASYNC110  another's task
                await asyncio.sleep(0.001)

    assert door.part.warnings() == ()
    await until("")
    answers[0] = SlowError("late")
    await until("its door does not answer")
    await asyncio.sleep(0.01)
    assert way.failed
    (line,) = door.part.warnings()
    assert "its door does not answer" in line
    answers[0] = TransportError("gone")
    await asyncio.sleep(0.01)
    answers[0] = None
    sites.take("us", [], (), time.monotonic(), ready=True)
    await until("")
    await asyncio.sleep(0.01)
    assert door.part.warnings() == ()
    asking.cancel()
    assert {metric.name for one in door.part.figures() for metric in one.metrics()} == {
        "kvmesh_site_usable",
        "kvmesh_site_round_trip_seconds",
        "kvmesh_site_requests",
        "kvmesh_site_digest_bytes",
        "kvmesh_site_digests_refused",
    }


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (settings(site=""), "name this one, too: --site"),
        (settings(site="a b"), "--site 'a b'"),
        (settings(peer_site=("a b=http://x",)), "--peer-site"),
        (settings(peer_site=("eu=http://x",)), "named twice"),
        (settings(peer_site=("us=http://x", "us=http://y")), "named twice"),
        (settings(peer_site=("us=x",)), "write NAME=http://host:port"),
        (settings(peer_site=tuple(f"s{n}=http://x" for n in range(8))), "a mesh has 8 sites"),
        (
            MetaRouterSettings(sites=SiteSettings(site="eu"), replica=("b=http://r",)),
            "hear of each other over NATS",
        ),
        (MetaRouterSettings(sites=SiteSettings(site="eu")), "--namespace of its own"),
    ],
)
def test_settings_that_make_no_sites_are_refused(wrong: MetaRouterSettings, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_doors(wrong)


def test_without_a_site_there_are_no_others() -> None:
    assert parse_doors(MetaRouterSettings()) == {}
    assert parse_doors(settings()) == {"us": "http://us"}
