import pytest

from kvmesh.core.admission.queue import (
    AdmissionOptions,
    HoldQueue,
    QueuePolicy,
    WaitingRequest,
)


def make_queue(**options: object) -> HoldQueue:
    return HoldQueue(AdmissionOptions(**options))  # type: ignore[arg-type]  # any option


def take_all(_: WaitingRequest) -> bool:
    return True


def offer(queue: HoldQueue, *requests: str, now: float = 0.0, tokens: int = 100) -> None:
    """Offer requests written `tenant/id`."""
    for request in requests:
        tenant = request.partition("/")[0]
        assert queue.offer(WaitingRequest(request, tokens, tenant), now) is None


def ids(released: list[WaitingRequest]) -> list[str]:
    return [held.request_id for held in released]


def test_tenants_share_by_tokens_not_by_requests() -> None:
    queue = make_queue(quantum_tokens=1000)
    for number in range(40):
        assert queue.offer(WaitingRequest(f"small/{number}", 100, "small"), 0.0) is None
        assert queue.offer(WaitingRequest(f"large/{number}", 1000, "large"), 0.0) is None
    budget = 8000
    taken = {"small": 0, "large": 0}

    def admit(held: WaitingRequest) -> bool:
        if sum(taken.values()) >= budget:
            return False
        taken[held.tenant] += held.tokens
        return True

    queue.release(1.0, admit)

    assert abs(taken["small"] - taken["large"]) <= 1000


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("fcfs", ["long", "short", "urgent"]),
        ("priority", ["urgent", "long", "short"]),
        ("wspt", ["short", "urgent", "long"]),
    ],
)
def test_each_policy_has_its_order(policy: QueuePolicy, expected: list[str]) -> None:
    queue = make_queue(policy=policy)
    queue.offer(WaitingRequest("long", 9000), 0.0)
    queue.offer(WaitingRequest("short", 100), 0.1)
    queue.offer(WaitingRequest("urgent", 1000, priority=4), 0.2)

    assert ids(queue.release(1.0, take_all)) == expected


def test_a_full_queue_refuses_with_503_and_a_tenants_bound_with_429() -> None:
    queue = make_queue(max_queued=3, max_queued_per_tenant=2)
    offer(queue, "a/1", "a/2")

    mine = queue.offer(WaitingRequest("a/3", 1, "a"), 0.0)
    offer(queue, "b/1")
    whole = queue.offer(WaitingRequest("b/2", 1, "b"), 0.0)

    assert mine is not None
    assert whole is not None
    assert (mine.status, mine.reason) == (429, "2 requests of this tenant waiting already")
    assert (whole.status, whole.reason) == (503, "3 requests waiting already")
    assert queue.statistics().refused == 2


def test_the_same_request_is_not_held_twice() -> None:
    queue = make_queue()
    offer(queue, "a/1")

    refusal = queue.offer(WaitingRequest("a/1", 1, "b"), 0.0)

    assert refusal is not None
    assert (refusal.reason, len(queue)) == ("request a/1 waits already", 1)


def test_the_time_to_retry_follows_the_pace_of_releases() -> None:
    queue = make_queue()
    assert queue.retry_after_s() == 1
    for number in range(100):
        offer(queue, f"a/{number}")
        queue.release(2.0 * number, take_all)
    offer(queue, *(f"b/{number}" for number in range(4)))

    assert 8 <= queue.retry_after_s() <= 10
    offer(queue, *(f"c/{number}" for number in range(200)))
    assert queue.retry_after_s() == 60


def test_a_cancelled_request_is_gone() -> None:
    queue = make_queue()
    offer(queue, "a/1", "a/2", "b/1")

    assert queue.cancel("a/1")
    assert not queue.cancel("a/1")
    assert queue.cancel("b/1")

    assert ids(queue.release(1.0, take_all)) == ["a/2"]
    statistics = queue.statistics()
    assert (statistics.held, statistics.released, statistics.cancelled) == (3, 1, 2)
    assert (statistics.queued, statistics.tenants, statistics.expired) == (0, 0, 0)


def test_one_request_may_be_taken_whoevers_turn_it_is() -> None:
    queue = HoldQueue(AdmissionOptions())
    for name in ("a", "b"):
        queue.offer(WaitingRequest(name, 10, name), 1.0)

    rank, held = queue.find("b")
    queue.take("b", 3.0)

    assert (held.request_id, held.queued_s, rank[0]) == ("b", 1.0, 0.0)
    assert (len(queue), queue.statistics().released, queue.statistics().waited_s) == (1, 1, 2.0)


def test_what_admit_raises_leaves_the_queue_as_it_was() -> None:
    queue = make_queue()
    offer(queue, "a/1", "b/1", "c/1", "d/1")

    def admit(held: WaitingRequest) -> bool:
        if held.tenant == "c":
            raise RuntimeError(held.request_id)
        return held.tenant == "a"

    with pytest.raises(RuntimeError, match="c/1"):
        queue.release(1.0, admit)

    assert (len(queue), sorted(ids(queue.release(2.0, take_all)))) == (3, ["b/1", "c/1", "d/1"])


def test_a_request_of_negative_priority_is_shed_where_that_is_wished() -> None:
    queue, patient = make_queue(sheds_negative=True), make_queue()

    refusal = queue.offer(WaitingRequest("a", 10, priority=-1), 0.0)

    assert refusal is not None
    assert (refusal.status, refusal.shed, refusal.retry_after_s) == (429, True, 1)
    assert "priority -1 does not wait" in refusal.reason
    assert queue.offer(WaitingRequest("b", 10), 0.0) is None
    assert patient.offer(WaitingRequest("a", 10, priority=-1), 0.0) is None
    assert (queue.statistics().refused, patient.statistics().refused) == (1, 0)


def test_what_waits_is_refused_at_the_latest_when_it_was_told() -> None:
    queue = make_queue(max_wait_s=10.0)
    offer(queue, "a/1", "a/2", "b/3", now=1.0)

    assert (queue.bound("a/2", 4.0), queue.bound("b/3", 50.0)) == (4.0, 11.0)
    assert (ids(queue.expire(3.9)), ids(queue.expire(4.0))) == ([], ["a/2"])
    queue.options = AdmissionOptions(max_wait_s=30.0)
    offer(queue, "a/4", now=5.0)
    assert ids(queue.expire(11.0)) == ["a/1", "b/3"]
    queue.options = AdmissionOptions(max_wait_s=7.0)
    assert ids(queue.expire(12.0)) == ["a/4"]
    assert queue.statistics().expired == 4


def test_the_work_before_a_newcomer_is_its_tenants_and_what_turns_give_others() -> None:
    queue = make_queue(quantum_tokens=1000)
    offer(queue, "a/1", "b/1", tokens=300)
    offer(queue, "c/1", "c/2", tokens=2000)

    # Of c as much as a is given until then: 300 before, its own 200 and a quantum.
    assert queue.tokens_before(WaitingRequest("a/2", 200, "a"), 1.0) == 300 + 300 + 1500
