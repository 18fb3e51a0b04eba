import pytest

from kvmesh.core.buckets.beginnings import Beginning
from kvmesh.core.buckets.spill import BucketHeat, BucketLoad
from kvmesh.core.sites.site_price import network_ms
from kvmesh.core.sites.sites import MOST_HOT, SiteRequest, Sites

FREE = (BucketLoad(("m",), BucketHeat(0.0, 0.1, 2)),)
FULL = (BucketLoad(("m",), BucketHeat(3000.0, 0.1, 2)),)
HELLO = SiteRequest("m", 4000)


def two_sites(own: tuple[BucketLoad, ...] = FREE) -> Sites:
    """The site eu, with us 80 ms and ap 150 ms away, both free."""
    sites = Sites("eu", {"us": "http://us", "ap": "http://ap"})
    sites.take_own(own, 0.0)
    for name, rtt_ms in (("us", 80.0), ("ap", 150.0)):
        sites.answered(name, rtt_ms)
        sites.take(name, FREE, (), 0.0, ready=True)
    return sites


def site_of(sites: Sites, asked: SiteRequest = HELLO, now: float = 0.1, *tried: str) -> str:
    choice = sites.choose(asked, now, tried)
    return "eu" if choice is None else choice.site


def test_a_site_that_floods_with_keys_is_heard_out_a_second_later() -> None:
    sites = two_sites()
    mine = SiteRequest("m", 256, [Beginning(256, 7)])
    sites.note(mine, "eu", 0.0)
    flood = range(1_000_000, 1_000_000 + 200_000)

    for start in range(0, len(flood), 8192):
        sites.take("us", FREE, flood[start : start + 8192], 0.5, ready=True)

    def at_us(key: int, now: float) -> bool:
        return "us" in sites.known_chars(SiteRequest("m", 256, [Beginning(256, key)]), now)

    assert sites.known_chars(mine, 0.5) == {"eu": 256}
    assert at_us(flood[MOST_HOT - 1], 0.5)
    assert not at_us(flood[MOST_HOT], 0.5)
    sites.take("us", FREE, flood[-1:], 0.9, ready=True)
    assert not at_us(flood[-1], 0.9)
    sites.take("us", FREE, flood[-1:], 1.0, ready=True)
    assert at_us(flood[-1], 1.0)


def test_first_tokens_that_are_late_at_home_send_nobody_where_it_may_be_no_better() -> None:
    sites, busy = two_sites(), two_sites((BucketLoad(("m",), BucketHeat(200.0, 0.1, 2)),))
    for one in (sites, busy):
        for _ in range(20):
            one.first_token("eu", 100.0, 500.0, 0.1)

    assert site_of(sites) == "eu"
    assert site_of(busy) == "us"


def test_a_request_stays_unless_its_site_is_full_or_sick() -> None:
    assert site_of(two_sites()) == "eu"
    assert site_of(two_sites(FULL)) == "us"
    assert site_of(two_sites(())) == "us"
    assert site_of(two_sites(), SiteRequest("other", 4000)) == "eu"


def test_sites_that_failed_a_request_are_left_out() -> None:
    full = two_sites(FULL)

    assert site_of(full, HELLO, 0.1, "us") == "ap"
    assert site_of(full, HELLO, 0.1, "us", "ap") == "eu"
    assert site_of(two_sites(), HELLO, 0.1, "eu") == "us"


def test_a_request_leaves_only_for_where_its_data_may_be() -> None:
    sites = two_sites(FULL)

    assert site_of(sites, SiteRequest("m", 4000, residency=("eu",))) == "eu"
    assert site_of(sites, SiteRequest("m", 4000, residency=("eu", "ap"))) == "ap"
    assert site_of(two_sites(()), SiteRequest("m", 4000, residency=("eu",))) == "eu"


def test_a_site_is_left_out_while_it_is_silent_or_does_not_answer_or_has_nobody() -> None:
    sites = two_sites(FULL)

    assert site_of(sites, HELLO, 2.4) == "us"
    assert site_of(sites, HELLO, 2.6) == "eu"
    sites.take("us", FREE, (), 2.6, ready=True)
    assert site_of(sites, HELLO, 2.7) == "us"
    assert not sites.missed("us")
    assert site_of(sites, HELLO, 2.7) == "us"
    assert sites.missed("us")
    assert not sites.missed("us")
    assert sites.why_not("us", 2.7) == "its door does not answer"
    assert site_of(sites, HELLO, 2.7) == "eu"
    sites.answered("us", 90.0)
    assert sites.why_not("us", 2.7) == ""
    sites.answered("us", 120.0)
    assert sites.view(2.7)[1].rtt_ms == 90.0
    sites.take("us", FREE, (), 2.7, ready=False)
    assert sites.why_not("us", 2.8) == "it has no ready router"
    assert sites.missed("us", certain=True)


def test_before_digest_and_probe_nothing_goes_there() -> None:
    sites = Sites("eu", {"us": "http://us"})
    sites.take_own(FULL, 0.0)

    assert sites.why_not("us", 0.0) == "its door has not answered yet"
    assert (sites.view(0.0)[0].rtt_ms, sites.view(0.0)[0].heard_s) == (None, None)
    sites.answered("us", 80.0)
    assert sites.why_not("us", 0.0) == "its digests do not come"
    assert site_of(sites) == "eu"
    assert sites.doors() == {"us": "http://us"}


def test_a_site_that_only_answers_takes_what_nobody_here_can() -> None:
    sites = Sites("eu", {"us": "http://us", "ap": "http://ap"})
    sites.answered("us", 80.0)

    assert site_of(sites) == "us"
    sites.missed("us", certain=True)
    assert site_of(sites) == "eu"


def test_a_digest_of_a_site_that_nobody_named_is_refused() -> None:
    sites = two_sites()

    assert not sites.take("evil", FREE, (), 0.0, ready=True)
    assert sites.take("eu", FULL, (7,), 0.0, ready=True)
    assert site_of(sites) == "eu"
    asked = SiteRequest("m", 4000, [Beginning(4000, 7)])
    assert sites.known_chars(asked, 0.1) == {"eu": 4000}


def test_what_a_site_got_or_told_before_is_cached_there() -> None:
    sites = two_sites()
    asked = SiteRequest("m", 5000, [Beginning(256, 1), Beginning(4096, 2)], (9, 8))

    sites.take("us", FREE, (1,), 0.0, ready=True)
    assert sites.known_chars(asked, 0.1) == {"us": 256}
    sites.note(SiteRequest("m", 4096, [Beginning(4096, 2)], (8,)), "ap", 0.1)
    assert sites.known_chars(asked, 0.2) == {"us": 256, "ap": 5000}
    sites.note(SiteRequest("m", 4096, [Beginning(4096, 2)]), "eu", 0.2)
    assert sites.known_chars(SiteRequest("m", 5000, asked.beginnings), 0.3) == {
        "us": 256, "ap": 4096, "eu": 4096,
    }  # fmt: skip
    assert (sites.stayed, [one.sent for one in sites.view(0.3)]) == (1, [1, 0])


def test_what_is_sent_to_a_site_is_waited_for_until_it_is_done_or_reported() -> None:
    sites = two_sites()
    prompt = SiteRequest("m", 400_000)
    network = network_ms(80.0, 400_000)

    assert sites.predict_ms(prompt, "us", 1.0) == pytest.approx(10_000.0 + network)
    sites.note(prompt, "us", 1.0)
    assert sites.predict_ms(prompt, "us", 1.0) == pytest.approx(15_000.0 + network)
    assert sites.predict_ms(prompt, "us", 3.0) == pytest.approx(13_000.0 + network)
    sites.note(prompt, "us", 3.0)
    sites.take("us", FREE, (), 3.05, ready=True)
    assert sites.predict_ms(prompt, "us", 3.05) == pytest.approx(15_000.0 + network)
    sites.take("us", (), (), 4.0, ready=True)
    assert sites.predict_ms(prompt, "us", 4.0) == 0.0
    sites.note(prompt, "us", 4.0)
    assert sites.predict_ms(prompt, "us", 4.0) == 0.0


def test_the_own_figures_count_once_however_often_they_are_read() -> None:
    sites = two_sites()
    prompt = SiteRequest("m", 400_000)
    sites.note(prompt, "eu", 0.0)

    sites.take_own(FREE, 0.5)

    assert sites.predict_ms(prompt, "eu", 0.5) == pytest.approx(10_000.0 + 4500.0)
    sites.take_own(FULL, 0.6)
    assert sites.predict_ms(prompt, "eu", 0.6) == pytest.approx(10_000.0 + 3000.0)


def test_a_site_whose_first_tokens_are_late_costs_more_for_a_while() -> None:
    sites = two_sites()
    asked = SiteRequest("m", 40_000)

    for _ in range(20):
        sites.first_token("us", 1000.0, 1000.0, 0.0)
        sites.first_token("eu", 1000.0, 4000.0, 0.0)

    assert site_of(sites, asked, 0.1) == "us"
    assert sites.predict_ms(asked, "eu", 0.1) == pytest.approx(1000.0)
    sites.take("us", FREE, (), 60.0, ready=True)
    assert site_of(sites, asked, 60.0) == "eu"


def test_models_that_clients_make_up_take_no_room() -> None:
    sites = two_sites((BucketLoad((), BucketHeat(0.0, 0.1, 1)),))
    for number in range(300):
        sites.note(SiteRequest(f"m{number}", 4000), "eu", 0.0)

    assert len(sites._home._backlogs) <= 256


def test_a_site_is_shown_with_what_it_told() -> None:
    sites = two_sites()

    ap, us = sites.view(1.0)

    assert (us.site, us.door, us.why_not, us.rtt_ms) == ("us", "http://us", "", 80.0)
    assert (us.heard_s, us.backlog_ms, us.workers, us.sent) == (1.0, 0.0, 2, 0)
    assert ap.rtt_ms == 150.0
