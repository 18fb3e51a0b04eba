from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.sites.site_price import (
    LATER_TURNS,
    MARGIN_MS,
    Offer,
    Price,
    choose_site,
    gain_ms,
    network_ms,
    prices,
)

figures = st.floats(0.0, 1e6)
homes = st.builds(
    Offer, st.just("home"), figures, st.floats(0.0, 10.0), st.integers(0, 1 << 20), st.just(0.0)
)
offers = st.builds(
    Offer,
    st.sampled_from(["a", "b", "c"]),
    figures,
    st.floats(0.0, 10.0),
    st.integers(0, 1 << 20),
    st.floats(0.0, 1000.0),
    st.floats(1.0, 50.0),
)
chars = st.integers(0, 1 << 20)


def test_a_price_is_backlog_prefill_and_network() -> None:
    found = prices([Offer("us", 100.0, 0.5, 4000, 80.0, late=2.0)], 12_000)

    assert found == [Price("us", 100.0 * 2 + 1000.0, 1000.0, network_ms(80.0, 12_000))]
    assert found[0].total_ms == 1200.0 + 1000.0 + network_ms(80.0, 12_000)


def test_a_long_prompt_takes_more_round_trips() -> None:
    assert network_ms(80.0, 0) == 80.0
    assert network_ms(80.0, 14_600) == 160.0
    assert network_ms(80.0, 3 * 14_600) == 240.0


def test_a_site_of_unknown_speed_is_as_slow_as_the_slowest() -> None:
    found = prices([Offer("a", 0.0, 0.0, 0), Offer("b", 0.0, 0.5, 0), Offer("c", 0.0, 2.0, 0)], 400)

    assert [one.prefill_ms for one in found] == [200.0, 50.0, 200.0]


def test_a_full_site_is_left_for_one_that_is_not() -> None:
    home, away = Offer("eu", 2000.0, 0.1, 0), Offer("us", 0.0, 0.1, 0, 80.0)

    found = choose_site(home, [away], 4000)

    assert found is not None
    assert (found.site, found.why) == ("us", "full")
    network = round(network_ms(80.0, 4000))
    assert found.words() == f"full: home 2100 ms, us {100 + network} ms, {network} of it network"


def test_a_long_prompt_that_is_cached_elsewhere_goes_there_a_short_one_stays() -> None:
    home = Offer("eu", 0.0, 0.5, 0)

    cold = choose_site(home, [Offer("us", 0.0, 0.5, 200_000, 40.0)], 200_000)

    assert cold is not None
    assert (cold.site, cold.why) == ("us", "cold")
    assert choose_site(home, [Offer("us", 0.0, 0.5, 2000, 40.0)], 2000) is None


def test_what_is_cached_elsewhere_counts_beyond_the_network_of_the_turns_that_follow() -> None:
    home, away = Price("eu", 0.0, 1000.0, 0.0), Price("us", 0.0, 0.0, 50.0)

    assert gain_ms(home, away) == 1000.0 - LATER_TURNS * 50.0 - 50.0
    assert gain_ms(away, home) == 50.0 - 50.0 - 1000.0 + (50.0 - 0.0 - 0.0) - 50.0 + 0.0


def test_a_site_that_cannot_take_a_request_is_left_whatever_that_costs() -> None:
    far, near = Offer("far", 0.0, 0.1, 0, 300.0), Offer("near", 0.0, 0.1, 0, 80.0)

    found = choose_site(None, [far, near], 0)

    assert found is not None
    assert found.words() == "sick: near 80 ms, 80 of it network"
    assert choose_site(None, [], 0) is None


@given(homes, st.lists(offers, max_size=3), chars)
def test_a_site_is_left_only_for_what_comes_sooner_by_more_than_the_margin(
    home: Offer, others: list[Offer], prompt_chars: int
) -> None:
    found = choose_site(home, others, prompt_chars)

    if found is not None:
        assert found.home is not None
        assert found.home.total_ms > found.away.total_ms + MARGIN_MS
        assert found.home.wait_ms + found.home.prefill_ms > MARGIN_MS


@given(homes, offers, chars, st.floats(0.0, 1000.0))
def test_nobody_goes_farther_away_for_what_he_would_not_go_nearer_for(
    home: Offer, away: Offer, prompt_chars: int, more_ms: float
) -> None:
    farther = Offer(
        away.site, away.wait_ms, away.ms_per_token, away.known_chars, away.rtt_ms + more_ms
    )
    nearer = Offer(away.site, away.wait_ms, away.ms_per_token, away.known_chars, away.rtt_ms)

    if choose_site(home, [nearer], prompt_chars) is None:
        assert choose_site(home, [farther], prompt_chars) is None


@given(homes, st.lists(offers, max_size=3, unique_by=lambda one: one.site), chars)
def test_the_order_of_offers_changes_nothing(
    home: Offer, others: list[Offer], prompt_chars: int
) -> None:
    assert choose_site(home, others, prompt_chars) == choose_site(home, others[::-1], prompt_chars)
