"""What a request costs at a site: the time until its first token."""

from collections.abc import Iterable, Sequence
from math import log2
from typing import Final, Literal

import msgspec

from kvmesh.core.buckets.spill import CHARS_PER_TOKEN

MARGIN_MS: Final = 100.0
MARGIN_SHARE: Final = 0.25
"""The own site is left only for so much less, and for that share of what it costs there: figures of
other sites are some seconds old, and what is computed there is not cached here.
"""

LATER_TURNS: Final = 8
"""What a prompt finds cached at another site it would find here, too, once it was computed here: a
conversation that goes there for that alone, and prompts that begin alike, pay the network so many
times more.
"""

FIRST_FLIGHT_BYTES: Final = 14_600
"""A connection that was idle sends so much, then waits a round trip, then twice as much (RFC 6928:
ten segments).
"""

Why = Literal["sick", "full", "cold"]
"""Why a request leaves its site: none of its workers can take it; they are busy for longer than
those elsewhere; the beginning of its prompt is cached elsewhere.
"""


class Offer(msgspec.Struct, frozen=True):
    """What a site has for one request: its least busy worker's backlog, ms, what it takes the site
    to prefill a token, ms (0: unknown), how many of the prompt's characters it got before, the
    round trip to it, ms, 0 at home, and how many times as long as predicted its first tokens take.
    """

    site: str
    wait_ms: float
    ms_per_token: float
    known_chars: int
    rtt_ms: float = 0.0
    late: float = 1.0


class Price(msgspec.Struct, frozen=True):
    """What a site costs, ms: `wait_ms` for its turn, prefill of what is not cached, the network.

    By how much both take longer than predicted is part of the wait: it is how busy the site is.
    """

    site: str
    wait_ms: float
    prefill_ms: float
    network_ms: float

    @property
    def total_ms(self) -> float:
        """Return the sum."""
        return self.wait_ms + self.prefill_ms + self.network_ms


class SiteChoice(msgspec.Struct, frozen=True):
    """Where a request goes that leaves its site, and why. `home` is what it costs there, None where
    nobody can take it.
    """

    site: str
    why: Why
    away: Price
    home: Price | None = None

    def words(self) -> str:
        """Return it as a header says it, e.g. `full: home 2310 ms, us 180 ms, 40 of it network`."""
        away = self.away
        there = f"{self.site} {away.total_ms:.0f} ms, {away.network_ms:.0f} of it network"
        if self.home is None:
            return f"{self.why}: {there}"
        return f"{self.why}: home {self.home.total_ms:.0f} ms, {there}"


def network_ms(rtt_ms: float, sent_bytes: int) -> float:
    """Return how much later the first token comes from a site so far away: a round trip, and one
    more for each doubling of what a connection sends at once.
    """
    return rtt_ms * (1.0 + log2(1.0 + sent_bytes / FIRST_FLIGHT_BYTES))


def prices(offers: Sequence[Offer], prompt_chars: int) -> list[Price]:
    """Return the price of each offer for a prompt. A site of unknown speed is taken to be as slow
    as the slowest known.
    """
    slowest = max((one.ms_per_token for one in offers), default=0.0)
    return [_price(one, prompt_chars, one.ms_per_token or slowest) for one in offers]


def _price(offer: Offer, prompt_chars: int, ms_per_token: float) -> Price:
    lacking = max(0, prompt_chars - offer.known_chars)
    prefill_ms = lacking / CHARS_PER_TOKEN * ms_per_token
    wait_ms = offer.wait_ms * offer.late + prefill_ms * (offer.late - 1.0)
    return Price(offer.site, wait_ms, prefill_ms, network_ms(offer.rtt_ms, prompt_chars))


def choose_site(
    home: Offer | None, others: Iterable[Offer], prompt_chars: int
) -> SiteChoice | None:
    """Return the site that a prompt leaves its own for; None: it stays.

    `home` None: its own cannot take it. Of equal ones the first by name is taken. O(others).
    """
    away = sorted(others, key=lambda one: one.site)
    if not away:
        return None
    known = prices(away if home is None else [*away, home], prompt_chars)
    there = known[: len(away)]
    if home is None:
        best = min(there, key=lambda one: one.total_ms)
        return SiteChoice(best.site, "sick", best)
    own = known[-1]
    best = max(there, key=lambda one: gain_ms(own, one))
    if gain_ms(own, best) <= max(MARGIN_MS, MARGIN_SHARE * own.total_ms):
        return None
    full = own.wait_ms - best.wait_ms >= own.prefill_ms - best.prefill_ms
    return SiteChoice(best.site, "full" if full else "cold", best, own)


def gain_ms(home: Price, away: Price) -> float:
    """Return what leaving gains: backlog and prefill that are less there, without the network. What
    is cached there counts as far as it is worth more than the network of `LATER_TURNS`.
    """
    cached_ms = home.prefill_ms - away.prefill_ms
    if cached_ms > 0.0:
        cached_ms = max(0.0, cached_ms - LATER_TURNS * away.network_ms)
    return home.wait_ms - away.wait_ms + cached_ms - away.network_ms
