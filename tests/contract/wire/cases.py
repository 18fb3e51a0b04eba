"""Every format that one kvmesh process writes and another reads, with a value of each."""

from typing import Final

from tests.contract.wire.bookings import bookings
from tests.contract.wire.case import WireCase
from tests.contract.wire.grouped import grouped
from tests.contract.wire.messages import commands, heartbeats, journal, seals, trials
from tests.contract.wire.programs import programs
from tests.contract.wire.stores import names, of_stores

CASES: Final[dict[str, dict[str, WireCase]]] = {
    "v1": {
        **dict(journal()),
        **dict(bookings()),
        **dict(heartbeats()),
        **dict(commands()),
        **dict(seals()),
        **dict(of_stores()),
        **dict(grouped()),
        **dict(programs()),
        **dict(names()),
    },
    "v2": dict(trials()),
}
