"""Whom a picker believes: the gateway's subset always, a client's headers never."""

from typing import Final

from kvmesh_lab.conformance.bench import Bench
from kvmesh_lab.conformance.case import PROTOCOL, Case, Rule, holds
from kvmesh_lab.conformance.exchange import Asked, Received, describe, picked
from kvmesh_lab.conformance.wire import DESTINATION, SERVED, SUBSET

NOWHERE: Final = ("192.0.2.1:8000", "192.0.2.2:8000")
"""Addresses of documentation (RFC 5737): no pool has them."""

UNAVAILABLE: Final = 503


async def one_member(bench: Bench) -> str:
    """Name each endpoint of the pool alone as the subset."""
    for member in bench.some_of_the_pool():
        for seed in range(2):
            found = await bench.pick(_narrowed(bench, (member,), seed))
            holds(set(found) == {member}, f"the subset is {member}, picked {','.join(found)}")
    return f"{len(bench.pool)} endpoints"


async def some_members(bench: Bench) -> str:
    """Name two endpoints, and one that no pool has."""
    allowed = bench.some_of_the_pool(3)[:2]
    for seed in range(8):
        found = await bench.pick(_narrowed(bench, (NOWHERE[0], *allowed), seed))
        holds(set(found) <= set(allowed), f"the subset is {allowed}, picked {','.join(found)}")
    return ""


async def subset_as_text(bench: Bench) -> str:
    """Name an endpoint of the pool in one string with commas."""
    member = bench.some_of_the_pool()[-1]
    asked = bench.asks(seed=3)
    text = Asked(path=asked.path, body=asked.body, subset=f"{NOWHERE[0]}, {member}")
    found = await bench.pick(text)
    holds(set(found) == {member}, f"the subset is {member}, picked {','.join(found)}")
    return ""


async def empty_subset(bench: Bench) -> str:
    """Send a subset with nothing in it."""
    async with bench.asked(_narrowed(bench, (), 4)) as (_, received):
        _refused(received)
    return ""


async def strange_subset(bench: Bench) -> str:
    """Name only endpoints that no pool has."""
    async with bench.asked(_narrowed(bench, NOWHERE, 5)) as (_, received):
        _refused(received)
    return ""


async def subset_in_a_header(bench: Bench) -> str:
    """Name, as a client, a subset in a header."""
    found = await bench.pick(_claiming(bench, ((SUBSET, NOWHERE[0]),)))
    bench.in_pool(found)
    return ""


async def spoofed(bench: Bench) -> str:
    """Name, as a client, an endpoint that no pool has, once and twice."""
    claims = ((DESTINATION, NOWHERE[0]), (SERVED, NOWHERE[0]))
    for headers in (claims, (*claims, (DESTINATION, NOWHERE[1]))):
        async with bench.asked(_claiming(bench, headers)) as (_, received):
            found = picked(received)
            holds(not set(found) & set(NOWHERE), f"the client's endpoint was picked: {found}")
            bench.in_pool(found)
            _overwrites(received)
    return ""


async def spoofed_member(bench: Bench) -> str:
    """Name, as a client, an endpoint of the pool that the gateway's subset leaves out."""
    mine, other = bench.some_of_the_pool(2)[:2]
    for seed in range(4):
        asked = bench.asks(seed=seed)
        both = Asked(
            path=asked.path, body=asked.body, subset=(mine,), headers=((DESTINATION, other),)
        )
        async with bench.asked(both) as (_, received):
            found = picked(received)
            holds(set(found) == {mine}, f"the subset is {mine}, picked {','.join(found)}")
            _overwrites(received)
    return ""


def _narrowed(bench: Bench, subset: tuple[str, ...], seed: int) -> Asked:
    asked = bench.asks(seed=seed)
    return Asked(path=asked.path, body=asked.body, subset=subset)


def _claiming(bench: Bench, headers: tuple[tuple[str, str], ...]) -> Asked:
    asked = bench.asks(seed=11)
    return Asked(path=asked.path, body=asked.body, headers=headers)


def _refused(received: Received) -> None:
    holds(received.ended is None, f"the picker ended the call: {describe(received.ended)}")
    if received.refusal is None:
        holds(condition=False, text=f"{','.join(picked(received))} was picked; expected 503")
    else:
        status = received.refusal.status
        holds(status == UNAVAILABLE, f"refused with {status}; expected {UNAVAILABLE}")


def _overwrites(received: Received) -> None:
    """Raise `Broken` if the client's header would stand beside the pick."""
    assert received.headers is not None
    setting = [one for one in received.headers.set_headers if one.name == DESTINATION]
    holds(
        DESTINATION in received.headers.removed or all(one.replaces for one in setting),
        f"{DESTINATION} is added to the client's own, not set in its place",
    )


_SUBSET = Rule(
    "If the gateway sets x-gateway-destination-endpoint-subset in the metadata "
    "envoy.lb.subset_hint, the picker selects only from that list.",
    f"{PROTOCOL}#endpoint-subset",
)
_NONE_LEFT = Rule(
    "If the list is empty, or none of it is eligible, the picker returns an ImmediateResponse with "
    "status 503.",
    f"{PROTOCOL}#endpoint-subset",
)
_OWN = Rule(
    "The picker sets x-gateway-destination-endpoint; whatever the client sent under that name does "
    "not reach the gateway's choice.",
    f"{PROTOCOL}#destination-endpoint",
)

CASES: Final = (
    Case("subset-one", "must", "each endpoint alone as the subset", _SUBSET, one_member),
    Case("subset-some", "must", "two endpoints and a stranger", _SUBSET, some_members),
    Case(
        "subset-text",
        "should",
        "the subset as one string with commas",
        Rule(
            "Gateways that fill the metadata from a header send one string; the reference picker "
            "takes both.",
            f"{PROTOCOL}#endpoint-subset",
        ),
        subset_as_text,
    ),
    Case("subset-empty", "must", "a subset with nothing in it", _NONE_LEFT, empty_subset),
    Case("subset-strangers", "must", "a subset without members", _NONE_LEFT, strange_subset),
    Case(
        "subset-header",
        "must",
        "a client's header x-gateway-destination-endpoint-subset",
        Rule(
            "The subset comes from the gateway, in metadata; a client's header is none.",
            f"{PROTOCOL}#endpoint-subset",
        ),
        subset_in_a_header,
    ),
    Case("spoofed-stranger", "must", "a client's own destination, not of the pool", _OWN, spoofed),
    Case(
        "spoofed-member",
        "must",
        "a client's own destination, of the pool but not of the subset",
        _OWN,
        spoofed_member,
    ),
)
