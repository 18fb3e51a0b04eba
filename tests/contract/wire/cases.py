"""Every format that one kvmesh process writes and another reads, with a value of each."""

from typing import Final

from tests.contract.wire import fourth, second, third
from tests.contract.wire.case import WireCase
from tests.contract.wire.messages import bookings, commands, heartbeats, journal, seals
from tests.contract.wire.stores import names, of_stores

CASES: Final[dict[str, dict[str, WireCase]]] = {
    "v1": {
        **dict(journal()),
        **dict(bookings()),
        **dict(heartbeats()),
        **dict(commands()),
        **dict(seals()),
        **dict(of_stores()),
        **dict(names()),
    },
    "v2": {**dict(second.bookings()), **dict(second.versions())},
    "v3": dict(third.grouped()),
    "v4": dict(fourth.programs()),
}
