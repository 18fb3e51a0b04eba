"""Bytes of every format on record: what a version wrote is read by all that come after it.

Here the two sides are a file of tests/fixtures/wire and this checkout. A test that fails says that
a fleet of both versions would not understand itself: see tests/fixtures/wire/README.md.
"""

import random

import msgspec
import pytest

from kvmesh.core.index.approx import new_approx
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.core.routing.peer_bookings import PeerBookings
from kvmesh.core.routing.scheduler import Scheduler
from tests.contract.wire.cases import CASES
from tests.contract.wire.record import bytes_of, recorded
from tests.reference.routing.peer_bookings import BookingsOfEachRecord

GROWING = ("worker_heartbeat", "router_heartbeat", "command_", "reply_", "manifest")
"""Maps by field name: a version may add fields, others pass over them."""

WITHDRAWN = {"policy"}
"""Fields of heartbeats that are written no more: whoever reads them takes them for untold."""

ALL = list(recorded())
FIXED = [one for one in ALL if not one[1].startswith(GROWING)]
MAPS = [one for one in ALL if one[1].startswith(GROWING)]


def test_every_format_is_on_record() -> None:
    assert sorted((version, name) for version in CASES for name in CASES[version]) == ALL


@pytest.mark.parametrize(("version", "name"), ALL)
def test_what_a_version_wrote_is_read_as_it_was_meant(version: str, name: str) -> None:
    case = CASES[version][name]

    assert case.read(bytes_of(version, name)) == case.value


@pytest.mark.parametrize(("version", "name"), FIXED)
def test_each_version_is_still_written_to_the_byte(version: str, name: str) -> None:
    case = CASES[version][name]

    assert case.write() == bytes_of(version, name)


@pytest.mark.parametrize(("version", "name"), MAPS)
def test_maps_keep_every_field_in_its_place(version: str, name: str) -> None:
    """An older process finds in a newer one's map all that it knows, of the same value."""
    decoder = msgspec.json if name == "manifest" else msgspec.msgpack
    before: dict[str, object] = decoder.decode(bytes_of(version, name))
    now: dict[str, object] = decoder.decode(CASES[version][name].write())

    known = {key: value for key, value in before.items() if key not in WITHDRAWN}

    assert known_of(now, known) == known


def known_of(now: object, before: object) -> object:
    """Return what of `now` a process knows that reads the fields of `before`, nested ones too."""
    if not isinstance(now, dict) or not isinstance(before, dict):
        return now
    return {key: known_of(now.get(key), value) for key, value in before.items()}


@pytest.mark.parametrize(("version", "name"), MAPS)
def test_fields_that_a_later_version_adds_are_passed_over(version: str, name: str) -> None:
    case = CASES[version][name]
    decoder = msgspec.json if name == "manifest" else msgspec.msgpack
    told: dict[str, object] = decoder.decode(bytes_of(version, name))
    later = decoder.encode(told | {"a_later_field": [1, {"of": "another shape"}]})

    assert case.read(later) == case.value


@pytest.mark.parametrize("compiled", [True, False])
def test_bookings_on_record_are_heard(*, compiled: bool) -> None:
    scheduler = Scheduler(
        RouterOptions(block_size=16),
        random.Random(1),
        membership=Membership(),
        sequences=new_sequences(16),
        routed=new_approx(),
    )
    peers = (PeerBookings if compiled else BookingsOfEachRecord)(scheduler)

    assert peers.receive("peer", bytes_of("v1", "bookings_state"), 0.0) is not None

    held = scheduler.sequences.owned("peer")
    assert [(one.request_id, one.worker) for one in held] == [("peer#1", "w0-dp1")]
