"""What the compiled core and Python share is written once, in C. Here are the values.

The stub of the core imports what stands in `TWICE`: these modules cannot import the core for mypy.
"""

from kvmesh import _native
from kvmesh.core.cost.weights import MOST_WEIGHTS
from kvmesh.core.engines.kv_events.saved_cache import MOST_TIERS
from kvmesh.core.index.freeze import KEY_BYTES
from kvmesh.core.insight.traffic import GAMMA
from kvmesh.core.members.loads import MOST_TOKENS
from kvmesh.core.routing.booking_events import MAX_KIND, MOST_STATES
from kvmesh.core.routing.peer_records import MOST_GRADED

TWICE = {
    "GAMMA": GAMMA,
    "KEY_BYTES": KEY_BYTES,
    "MAX_KIND": MAX_KIND,
    "MOST_GRADED": MOST_GRADED,
    "MOST_STATES": MOST_STATES,
    "MOST_TIERS": MOST_TIERS,
    "MOST_TOKENS": MOST_TOKENS,
    "MOST_WEIGHTS": MOST_WEIGHTS,
}

SHARED = {
    "DUE": 2,
    "ENDED": 4,
    "ENTRY_OVERHEAD": 136,
    "GAMMA": 1.05,
    "KEY_BYTES": 7,
    "MAX_KIND": 32,
    "MAX_RELEASED": 256,
    "MOST_GRADED": 1024,
    "MOST_STATES": 4,
    "MOST_TIERS": 8,
    "MOST_TOKENS": 1 << 40,
    "MOST_WEIGHTS": 32,
    "OVERDUE": 1.5,
    "RENEW_S": 0.5,
    "SHARDS": 256,
    "TAKEN": 1,
}


def test_the_constants_of_the_core_have_these_values() -> None:
    assert {name: getattr(_native, name) for name in dir(_native) if name.isupper()} == {
        **SHARED,
        "VERSION": _native.VERSION,
    }


def test_what_is_written_in_python_too_is_the_same() -> None:
    assert TWICE.items() <= SHARED.items()
