"""What the compiled core and Python share is written once, in C. Here are the values."""

from kvmesh import _native

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
