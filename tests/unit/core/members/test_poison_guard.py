from kvmesh.core.members.poison_guard import (
    MAX_REMEMBERED,
    MOST_SUSPECTS,
    PoisonGuard,
    key_of,
)


def end(guard: PoisonGuard, body: bytes, worker: str, now: float) -> None:
    guard.died(key_of(body), worker, now)
    guard.gone(worker, now)


def test_a_body_that_ended_two_workers_is_refused_for_a_while() -> None:
    guard = PoisonGuard(window_s=60.0)
    end(guard, b"a", "w1", 0.0)
    end(guard, b"a", "w2", 50.0)
    guard.died(key_of(b"a"), "w1", 50.0)

    assert guard.refuses(key_of(b"a"), 110.0)
    assert not guard.refuses(key_of(b"b"), 110.0)
    assert not guard.refuses(key_of(b"a"), 110.1)
    assert guard.refused == 1
    assert guard.deaths == {}, "nobody is asked about any more"


def test_ends_long_apart_are_no_habit() -> None:
    guard = PoisonGuard(window_s=60.0)
    end(guard, b"a", "w1", 0.0)
    end(guard, b"a", "w2", 61.0)

    assert not guard.refuses(key_of(b"a"), 61.0)


def test_bodies_and_workers_without_end_are_not_kept() -> None:
    guard = PoisonGuard(max_deaths=1)
    for number in range(MAX_REMEMBERED + 1):
        guard.died(b"%d" % number, f"w{number}", 0.0)
    guard.gone("w0", 0.0)
    guard.gone("w2", 0.0)
    for number in range(MOST_SUSPECTS + 2):
        guard.died(b"many", f"w{number}", 0.0)

    assert not guard.refuses(b"0", 0.0)
    assert guard.refuses(b"2", 0.0)
    guard.gone(f"w{MOST_SUSPECTS + 1}", 0.0)
    assert not guard.refuses(b"many", 0.0)
