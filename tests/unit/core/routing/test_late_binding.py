import random

import pytest

from kvmesh.core.admission.queue import AdmissionOptions, Refusal
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.members.membership import Membership
from kvmesh.core.overlap.approx import ApproxIndex
from kvmesh.core.routing.decision import Decision, RouteRequest, RouterOptions
from kvmesh.core.routing.late_binding import LateBinding, Released
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.workers.info import BusyThresholds
from kvmesh.core.workers.sequences import ActiveSequences
from kvmesh.errors import NoWorkerError

W1, W2 = WorkerId("w1"), WorkerId("w2")


def make_binding(*workers: WorkerId, **options: object) -> tuple[LateBinding, Scheduler]:
    """Prefill is believed to take 0.05 ms a token, so 16,000 tokens are a backlog of 800 ms."""
    membership = Membership()
    for worker in workers:
        membership.add(worker, 0.0)
    scheduler = Scheduler(
        RouterOptions(),
        random.Random(1),
        membership=membership,
        sequences=ActiveSequences(16),
        routed=ApproxIndex(),
    )
    return LateBinding(scheduler, AdmissionOptions(**options)), scheduler  # type: ignore[arg-type]  # any option


def make_request(
    request_id: str, blocks: int = 1000, family: int = 0, **wishes: object
) -> RouteRequest:
    hashes = BlockHashes.of([family * 100_000 + depth for depth in range(1, blocks + 1)], 16)
    return RouteRequest(request_id, hashes, blocks * 16, **wishes)  # type: ignore[arg-type]  # any wish


def release(binding: LateBinding, now: float) -> list[Released]:
    return binding.release(now, lambda: False)


def test_a_request_waits_until_its_worker_can_begin_soon() -> None:
    binding, scheduler = make_binding(W1)
    first = binding.ask(make_request("r1"), 0.0)

    assert isinstance(first, Decision)
    assert binding.ask(make_request("r2", family=1), 0.0) is None
    assert len(binding) == 1
    assert release(binding, 0.1) == []
    scheduler.first_token("r1", 0.8)
    (released,) = release(binding, 0.8)
    assert isinstance(released.verdict, Decision)
    assert (released.request_id, released.verdict.worker) == ("r2", W1)
    assert scheduler.sequences.bookings.get("r2") is not None
    assert len(binding) == 0


def test_the_worker_is_chosen_when_the_turn_comes_not_on_arrival() -> None:
    binding, scheduler = make_binding(W1, W2)
    homes = [binding.ask(make_request(f"r{number}", family=number), 0.0) for number in range(2)]
    assert binding.ask(make_request("r3", family=3), 0.0) is None
    free = homes[1]
    assert isinstance(free, Decision)

    scheduler.first_token(free.request_id, 0.5)
    (released,) = release(binding, 0.5)

    assert isinstance(released.verdict, Decision)
    assert released.verdict.worker == free.worker


def test_nobody_overtakes_those_that_wait_already() -> None:
    binding, scheduler = make_binding(W1)
    binding.ask(make_request("r1"), 0.0)
    assert binding.ask(make_request("r2", family=1), 0.0) is None

    scheduler.first_token("r1", 0.8)

    assert binding.ask(make_request("r3", 1, family=2), 0.8) is None
    assert [one.request_id for one in release(binding, 0.8)] == ["r2"]


def test_without_a_bound_nothing_is_held() -> None:
    binding, scheduler = make_binding(W1, max_backlog_ms=0.0)

    assert not binding.bounded
    assert all(isinstance(binding.ask(make_request(f"r{n}"), 0.0), Decision) for n in range(9))
    scheduler.workers.thresholds = BusyThresholds(active_prefill_tokens=1)
    with pytest.raises(NoWorkerError, match="busy"):
        binding.ask(make_request("late"), 0.0)


def test_what_is_held_goes_when_the_bound_is_lifted() -> None:
    binding, _ = make_binding(W1)
    binding.ask(make_request("r1"), 0.0)
    assert binding.ask(make_request("r2", family=1), 0.0) is None

    binding.change(AdmissionOptions(max_backlog_ms=0.0))

    assert binding.waiting
    assert [one.request_id for one in release(binding, 0.0)] == ["r2"]
    assert not binding.waiting


def test_busy_workers_are_waited_for() -> None:
    binding, scheduler = make_binding(W1, max_backlog_ms=10_000.0)
    scheduler.workers.thresholds = BusyThresholds(active_prefill_tokens=1000)
    binding.ask(make_request("r1"), 0.0)

    assert binding.ask(make_request("r2", family=1), 0.0) is None
    scheduler.first_token("r1", 0.8)
    assert [one.request_id for one in release(binding, 0.8)] == ["r2"]


def test_what_no_worker_will_ever_take_is_not_held() -> None:
    binding, _ = make_binding(W1)

    with pytest.raises(NoWorkerError, match="w9: unknown"):
        binding.ask(make_request("r1", pinned_worker=WorkerId("w9")), 0.0)


def test_a_held_request_learns_that_its_workers_are_gone() -> None:
    binding, scheduler = make_binding(W1)
    binding.ask(make_request("r1"), 0.0)
    assert binding.ask(make_request("r2", family=1), 0.0) is None

    scheduler.workers.membership.remove(W1)
    (released,) = release(binding, 0.1)

    assert isinstance(released.verdict, NoWorkerError)
    assert len(binding) == 0


def test_bounds_refuse_and_say_when_to_come_again() -> None:
    binding, _ = make_binding(W1, max_queued=1)
    binding.ask(make_request("r1"), 0.0)
    assert binding.ask(make_request("r2", family=1), 0.0) is None

    refusal = binding.ask(make_request("r3", family=2), 0.0)

    assert isinstance(refusal, Refusal)
    assert (refusal.status, refusal.retry_after_s) == (503, binding.retry_after_s())
    assert binding.statistics().refused == 1


def test_the_work_of_a_request_is_what_nobody_has_cached() -> None:
    binding, _ = make_binding(W1, policy="wspt")
    binding.ask(make_request("r1"), 0.0)
    assert binding.ask(make_request("cold", 900, family=1), 0.0) is None
    assert binding.ask(make_request("warm", 1001), 0.0) is None

    binding.change(AdmissionOptions(policy="wspt", max_backlog_ms=0.0))

    assert [one.request_id for one in release(binding, 0.0)] == ["warm", "cold"]


def test_the_least_bound_is_one_and_a_lifted_one_is_none() -> None:
    binding, _ = make_binding(W1, max_backlog_ms=0.5)
    assert binding.bounded is True

    binding.change(AdmissionOptions(max_backlog_ms=0.0))

    assert binding.bounded is False


def test_tenants_take_turns_and_priorities_order_one_tenants_requests() -> None:
    binding, scheduler = make_binding(W1, policy="priority", quantum_tokens=16_000)
    binding.ask(make_request("r0"), 0.0)
    for number, (tenant, priority) in enumerate([("a", 0), ("a", 5), ("b", 0)], start=1):
        request = make_request(f"r{number}", family=number, tenant=tenant, priority=priority)
        assert binding.ask(request, 0.0) is None

    order: list[str] = []
    for turn in range(3):
        last = order[-1] if order else "r0"
        scheduler.first_token(last, 0.8 + turn)
        order += [one.request_id for one in release(binding, 0.8 + turn)]

    assert order == ["r2", "r3", "r1"]


def test_a_released_request_carries_every_candidate_when_it_is_traced() -> None:
    binding, scheduler = make_binding(W1, W2)
    for number in range(2):
        binding.ask(make_request(f"r{number}", family=number), 0.0)
    binding.ask(make_request("r3", family=3), 0.0)
    scheduler.first_token("r0", 0.8)

    [released] = binding.release(0.8, lambda: True)

    assert isinstance(released.verdict, Decision)
    assert len(released.verdict.candidates) == 2


def test_whoever_waits_too_long_or_leaves_is_forgotten() -> None:
    binding, scheduler = make_binding(W1, max_wait_s=1.0)
    binding.ask(make_request("r1"), 0.0)
    assert binding.ask(make_request("late", family=1), 0.0) is None
    assert binding.ask(make_request("left", family=2), 0.5) is None

    assert binding.cancel("left")
    assert not binding.cancel("left")
    assert binding.expire(1.0) == ["late"]
    scheduler.first_token("r1", 1.0)
    assert release(binding, 1.0) == []
    assert binding.options.max_wait_s == 1.0


def test_a_request_that_cannot_be_decided_about_leaves_alone_with_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    binding, scheduler = make_binding(W1)
    binding.ask(make_request("r1"), 0.0)
    for number, name in enumerate(("poison", "next"), 1):
        assert binding.ask(make_request(name, family=number), 0.0) is None
    scheduler.first_token("r1", 1.0)
    plain = scheduler.schedule_within

    def schedule_within(request: RouteRequest, now: float, most_ms: float) -> Decision | None:
        if request.request_id == "poison":
            raise ArithmeticError("nan")
        return plain(request, now, most_ms)

    monkeypatch.setattr(scheduler, "schedule_within", schedule_within)
    first, second = release(binding, 1.0)

    assert (first.request_id, repr(first.verdict)) == ("poison", "ArithmeticError('nan')")
    assert (second.request_id, type(second.verdict)) == ("next", Decision)
    assert len(binding) == 0
