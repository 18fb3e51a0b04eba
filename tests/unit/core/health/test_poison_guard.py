from kvmesh.core.health.poison_guard import MAX_REMEMBERED, PoisonGuard


def test_one_death_may_be_the_workers_own() -> None:
    guard = PoisonGuard()
    guard.died(b"a", "w1", 0.0)

    assert not guard.refuses(b"a", 0.0)
    assert not guard.refuses(b"b", 0.0)
    assert guard.refused == 0


def test_a_body_that_ended_two_workers_is_refused_for_a_while() -> None:
    guard = PoisonGuard(window_s=60.0)
    guard.died(b"a", "w1", 0.0)
    guard.died(b"a", "w2", 50.0)

    assert guard.refuses(b"a", 110.0)
    assert not guard.refuses(b"b", 110.0)
    assert not guard.refuses(b"a", 110.1)
    assert not guard.refuses(b"a", 110.1)
    assert guard.refused == 1


def test_deaths_long_apart_are_no_habit() -> None:
    guard = PoisonGuard(window_s=60.0)
    guard.died(b"a", "w1", 0.0)
    guard.died(b"a", "w2", 61.0)

    assert not guard.refuses(b"a", 61.0)


def test_bodies_without_end_are_not_kept() -> None:
    guard = PoisonGuard(max_deaths=1)
    for number in range(MAX_REMEMBERED + 1):
        guard.died(b"%d" % number, "w1", 0.0)

    assert not guard.refuses(b"0", 0.0)
    assert guard.refuses(b"1", 0.0)


def test_a_worker_that_takes_equal_requests_along_ends_once() -> None:
    guard = PoisonGuard()
    for _ in range(8):
        guard.died(b"a", "w1", 0.0)
    assert not guard.refuses(b"a", 0.0)

    guard.died(b"a", "w1", 10.0)

    assert guard.refuses(b"a", 10.0)
