import asyncio

import pytest

from kvmesh.app.picker.addresses import FRESH_S, SUBSET_S, Addresses, Located
from kvmesh.core.blocks.events import WorkerId
from kvmesh.errors import TransportError


class Places:
    """Workers, and a clock that stands."""

    def __init__(self, *origins: str) -> None:
        self.now = 0.0
        self.there = [
            Located(WorkerId(f"w{number}"), origin) for number, origin in enumerate(origins)
        ]
        self.version = object()
        self.addresses = Addresses(lambda: self.now, lambda: self.there, lambda: self.version)


@pytest.mark.parametrize(
    ("origin", "endpoint"),
    [
        ("http://10.0.0.1:8000", b"10.0.0.1:8000"),
        ("http://10.0.0.1", b"10.0.0.1:80"),
        ("https://10.0.0.1", b"10.0.0.1:443"),
        ("http://[fd00::1]:8000", b"[fd00::1]:8000"),
        ("http://engine-0.engines:8000", None),
    ],
)
async def test_an_address_needs_no_looking_up(origin: str, endpoint: bytes | None) -> None:
    addresses = Places().addresses

    assert addresses.find(origin) == endpoint
    assert addresses.find(origin) == endpoint


async def test_a_name_is_looked_up_once_for_all_who_ask_and_anew_when_it_is_old() -> None:
    places = Places()
    addresses, origin = places.addresses, "http://localhost:8000"
    first, second = await asyncio.gather(addresses.resolve(origin), addresses.resolve(origin))
    known = addresses.find(origin)
    places.now = FRESH_S + 1.0
    stale = addresses.find(origin)
    again = await addresses.resolve(origin)

    assert {first, second, known, stale, again} == {first}
    assert first in {b"127.0.0.1:8000", b"[::1]:8000"}


async def test_a_name_of_nobody_is_an_error_that_says_so() -> None:
    with pytest.raises(TransportError, match=r"no\.such\.name\.invalid"):
        await Places().addresses.resolve("http://no.such.name.invalid:1")


async def test_a_subset_means_the_workers_at_its_endpoints() -> None:
    places = Places("http://10.0.0.1:1", "http://10.0.0.1:2", "ftp://nonsense")
    one = places.addresses.within(("10.0.0.1:2",))
    all_known = places.addresses.within(("10.0.0.1:1", "10.0.0.1:2"))
    places.there.pop()
    before = places.addresses.within(("10.0.0.1:1", "10.0.0.1:2"))
    places.now += SUBSET_S
    later = places.addresses.within(("10.0.0.1:1", "10.0.0.1:2"))
    places.there.append(Located(WorkerId("w9"), "http://10.0.0.9:1"))
    places.version = object()
    others = places.addresses.within(("10.0.0.1:1", "10.0.0.1:2"))

    assert one == frozenset({WorkerId("w1")})
    assert all_known == before == others == frozenset({WorkerId("w0"), WorkerId("w1")})
    assert later is None


async def test_subsets_and_origins_without_end_are_not_all_kept() -> None:
    addresses, most = Places("http://10.0.0.1:1").addresses, 0
    for number in range(5000):
        addresses.find(f"http://10.1.{number // 250}.{number % 250}:80")
        addresses.within((f"10.0.0.1:{number}",))
        most = max(most, len(addresses._known))

    assert most == 4096
    assert len(addresses._subsets) <= 64


async def test_the_origin_of_an_endpoint_is_found() -> None:
    addresses = Places("http://10.0.0.1:1", "http://10.0.0.2:2").addresses

    assert addresses.origin_of("10.0.0.2:2") == "http://10.0.0.2:2"
    assert addresses.origin_of("10.0.0.3:3") is None


async def test_nothing_is_looked_up_after_the_end() -> None:
    addresses = Places().addresses
    asked = asyncio.ensure_future(addresses.resolve("http://localhost:1"))
    await asyncio.sleep(0)
    addresses.close()

    with pytest.raises(asyncio.CancelledError):
        await asked
