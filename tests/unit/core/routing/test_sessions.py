from typing import get_args
from zlib import crc32

import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.members.worker_info import BusyThresholds
from kvmesh.core.routing.decision import Decision, RouteRequest
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.routing.sessions import (
    Affinity,
    SessionOptions,
    Sessions,
    affinity_of,
    session_key,
)
from kvmesh.errors import NoWorkerError
from tests.unit.core.routing.scheduling import W1, W2, W3, decide, make_scheduler


def session_scheduler(affinity: Affinity) -> Scheduler:
    scheduler = make_scheduler(W1, W2, W3, events=False, routed=True)
    scheduler.sessions = Sessions(SessionOptions(affinity=affinity, slack_ms=100.0))
    return scheduler


def take(scheduler: Scheduler, request_id: str, blocks: int = 10, **wishes: object) -> Decision:
    return decide(scheduler, make_request(request_id, blocks, **wishes))


def make_request(request_id: str, blocks: int = 10, **wishes: object) -> RouteRequest:
    family = crc32(request_id.encode()) << 16
    hashes = BlockHashes.of([family + depth for depth in range(1, blocks + 1)], 16)
    session = wishes.pop("session", "s")
    return RouteRequest(request_id, hashes, blocks * 16, session=session, **wishes)  # type: ignore[arg-type]  # any wish


def test_a_session_is_bound_kept_and_forgotten() -> None:
    sessions = Sessions(SessionOptions(ttl_s=100.0))

    assert sessions.find("a", 0.0) is None
    sessions.bind("a", W1, 0.0)
    assert sessions.find("a", 100.0) == W1
    sessions.bind("a", W1, 100.0)
    assert sessions.find("a", 200.0) == W1
    assert sessions.find("a", 201.0) is None
    assert sessions.find("a", 0.0) is None
    statistics = sessions.statistics()
    assert (statistics.began, statistics.kept, statistics.moved) == (1, 1, 0)


def test_only_what_others_do_not_know_is_news() -> None:
    sessions = Sessions(SessionOptions(ttl_s=100.0))

    def updates() -> dict[str, WorkerId]:
        reported, sessions.updates = sessions.updates, {}
        return reported

    sessions.bind("a", W1, 0.0)
    assert updates() == {"a": W1}
    sessions.bind("a", W1, 49.0)
    assert updates() == {}
    sessions.bind("a", W1, 51.0)
    assert updates() == {"a": W1}
    sessions.bind("a", W2, 52.0)
    assert (updates(), sessions.statistics().moved) == ({"a": W2}, 1)


def test_who_tells_the_news_is_called_at_each() -> None:
    sessions, called = Sessions(SessionOptions(ttl_s=100.0)), list[int]()
    sessions.on_news = lambda: called.append(len(sessions.updates))

    sessions.bind("a", W1, 0.0)
    sessions.bind("a", W1, 1.0)
    sessions.bind("b", W1, 1.0)
    sessions.bind("a", W2, 1.0)

    assert called == [1, 2, 2]


def test_the_last_binding_written_counts() -> None:
    sessions = Sessions(SessionOptions())
    key = session_key("a")
    sessions.learn(key, W1, 0.0)
    assert sessions.find(key, 0.0) == W1
    sessions.learn(key, W2, 1.0)
    assert sessions.find(key, 1.0) == W2

    sessions.bind(key, W3, 2.0)
    sessions.learn(key, W1, 3.0)
    assert sessions.find(key, 3.0) == W3
    sessions.updates.clear()
    sessions.learn(key, W1, 4.0)
    assert sessions.find(key, 4.0) == W1


@pytest.mark.parametrize(
    ("key", "worker"), [("a", "w1"), ("a" * 1000, "w1"), ("a" * 32, ""), ("a" * 32, "w" * 10_000)]
)
def test_what_is_no_binding_is_passed_over(key: str, worker: str) -> None:
    sessions = Sessions(SessionOptions())

    sessions.learn(key, WorkerId(worker), 0.0)

    assert sessions.statistics().sessions == 0


def test_bindings_that_others_invent_are_no_more_than_the_sessions() -> None:
    sessions = Sessions(SessionOptions(max_sessions=64))

    for number in range(640):
        sessions.learn(session_key(str(number)), W1, 0.0)

    assert sessions.statistics().sessions == 64


def test_the_session_longest_unused_goes_first() -> None:
    sessions = Sessions(SessionOptions(max_sessions=2))
    sessions.bind("a", W1, 0.0)
    sessions.bind("b", W1, 1.0)
    sessions.bind("a", W1, 2.0)
    third = session_key("c")
    sessions.learn(third, W1, 3.0)

    assert [sessions.find(key, 3.0) for key in ("a", "b", third)] == [W1, None, W1]


def test_a_key_hides_the_sessions_name_and_is_always_the_same() -> None:
    assert session_key("chat \udcff 1") == session_key("chat \udcff 1")
    assert len(session_key("")) == 32
    assert session_key("a") != session_key("b")


@pytest.mark.parametrize("affinity", [one for one in get_args(Affinity) if one != "off"])
def test_a_session_stays_at_its_worker(affinity: Affinity) -> None:
    scheduler = session_scheduler(affinity)

    first = take(scheduler, "r1")
    others = [take(scheduler, f"o{n}", session="") for n in range(4)]
    second = take(scheduler, "r2")

    assert not first.kept
    assert second.kept
    assert second.worker == first.worker
    assert not any(one.kept for one in others)
    assert scheduler.sessions is not None
    assert scheduler.sessions.find("", 0.0) is None
    assert scheduler.explain(make_request("r3"), 0.0).kept
    assert not scheduler.explain(make_request("r4", session="new"), 0.0).kept


def test_a_soft_session_moves_when_its_worker_is_behind_a_hard_one_does_not() -> None:
    workers = []
    for affinity in ("soft", "hard"):
        scheduler = session_scheduler(affinity)
        home = take(scheduler, "r1", 1000).worker
        workers.append((home, take(scheduler, "r2").worker))
        assert scheduler.explain(make_request("r3"), 0.0).kept

    assert workers[0][0] != workers[0][1]
    assert workers[1][0] == workers[1][1]


def test_a_session_moves_when_its_worker_is_gone_or_failed() -> None:
    scheduler = session_scheduler("hard")
    home = take(scheduler, "r1").worker

    again = take(scheduler, "r1b", excluded=frozenset([home]))
    assert again.worker != home
    scheduler.workers.membership.remove(again.worker)
    assert take(scheduler, "r2").worker != again.worker


def test_a_hard_session_waits_for_a_busy_worker_a_soft_one_moves() -> None:
    for affinity in ("soft", "hard"):
        scheduler = session_scheduler(affinity)
        home = take(scheduler, "r1", 100).worker
        scheduler.workers.thresholds = BusyThresholds(active_prefill_tokens=1000)
        if affinity == "hard":
            with pytest.raises(NoWorkerError, match="busy") as caught:
                scheduler.schedule(make_request("r2"), 0.0)
            assert caught.value.busy
        else:
            assert take(scheduler, "r2").worker != home


def test_equal_cache_keys_of_two_tenants_are_two() -> None:
    keys = [affinity_of(key, tenant) for key in ("a", "b", "\ud800") for tenant in ("", "t")]

    assert len({*keys}) == len(keys)
    assert all(0 < key < 1 << 64 for key in keys)
    assert affinity_of("a", "t") == affinity_of("a", "t")
