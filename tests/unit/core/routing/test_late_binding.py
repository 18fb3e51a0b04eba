from array import array
from unittest.mock import Mock

import msgspec
import pytest

from kvmesh._native import Placed
from kvmesh.core.admission.queue import AdmissionOptions, Refusal
from kvmesh.core.admission.shares import ShareRow, Shares, key_of
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import NO_HASHES, Hashes
from kvmesh.core.index.block_table import Groups
from kvmesh.core.members.worker_info import BusyThresholds, WorkerInfo
from kvmesh.core.programs.governor import MOST_PREFILL, Governor
from kvmesh.core.programs.held import GovernorOptions
from kvmesh.core.programs.turn import Turn, TurnEnd
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.late_binding import LateBinding, Released
from kvmesh.core.routing.program_fleet import GovernedFleet
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.routing.tenant_cost import MOST_RESERVED
from kvmesh.errors import NoWorkerError
from tests.unit.core.routing import scheduling
from tests.unit.core.routing.scheduling import W1, W2, make_scheduler


def make_binding(*workers: WorkerId, **options: object) -> tuple[LateBinding, Scheduler]:
    """Prefill is believed to take 0.05 ms a token, so 16,000 tokens are a backlog of 800 ms."""
    scheduler = make_scheduler(*workers, events=False, routed=True)
    return LateBinding(scheduler, AdmissionOptions(**options)), scheduler  # type: ignore[arg-type]  # any option


def make_request(
    request_id: str, blocks: int = 1000, family: int = 0, **wishes: object
) -> RouteRequest:
    return scheduling.make_request(request_id, blocks, family, **wishes)


def waiting_binding(**options: object) -> tuple[LateBinding, Scheduler]:
    """Return a binding whose one worker prefills r1, while r2 waits."""
    binding, scheduler = make_binding(W1, **options)
    assert isinstance(binding.ask(make_request("r1"), 0.0), Placed)
    ask_held(binding, make_request("r2", family=1))
    return binding, scheduler


def release(binding: LateBinding, now: float) -> list[Released]:
    return binding.release(now, lambda: False)


def released_ids(binding: LateBinding, now: float) -> list[str]:
    return [one.request_id for one in release(binding, now)]


def ask_held(binding: LateBinding, *requests: RouteRequest) -> None:
    for request in requests:
        assert binding.ask(request, 0.0) is None


def test_a_request_waits_until_its_worker_can_begin_soon() -> None:
    binding, scheduler = waiting_binding()

    assert (len(binding), release(binding, 0.1)) == (1, [])
    scheduler.first_token("r1", 0.8)
    (released,) = release(binding, 0.8)
    assert isinstance(released.verdict, Placed)
    assert (released.request_id, released.verdict.record.worker) == ("r2", W1)
    assert ("r2" in scheduler.sequences.bookings, len(binding)) == (True, 0)


def test_nobody_overtakes_those_that_wait_already() -> None:
    binding, scheduler = waiting_binding()

    scheduler.first_token("r1", 0.8)

    assert binding.ask(make_request("r3", 1, family=2), 0.8) is None
    assert released_ids(binding, 0.8) == ["r2"]


def test_busy_workers_are_waited_for() -> None:
    binding, scheduler = make_binding(W1, max_backlog_ms=10_000.0)
    scheduler.workers.thresholds = BusyThresholds(active_prefill_tokens=1000)
    binding.ask(make_request("r1"), 0.0)

    assert binding.ask(make_request("r2", family=1), 0.0) is None
    scheduler.first_token("r1", 0.8)
    assert released_ids(binding, 0.8) == ["r2"]


def test_a_held_request_learns_that_its_workers_are_gone() -> None:
    binding, scheduler = waiting_binding()

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
    assert (refusal.status, refusal.retry_after_s) == (503, binding.queue.retry_after_s())
    assert binding.queue.statistics().refused == 1


def test_the_work_of_a_request_is_what_nobody_has_cached() -> None:
    binding, _ = make_binding(W1, policy="wspt")
    binding.ask(make_request("r1"), 0.0)
    assert binding.ask(make_request("cold", 900, family=1), 0.0) is None
    assert binding.ask(make_request("warm", 1001), 0.0) is None

    binding.change(AdmissionOptions(policy="wspt", max_backlog_ms=0.0))

    assert [one.request_id for one in release(binding, 0.0)] == ["warm", "cold"]


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
    assert binding.queue.options.max_wait_s == 1.0


def test_a_tenant_is_charged_for_what_its_worker_computes_and_generates() -> None:
    binding, scheduler = make_binding(W1, fairness="locality")
    ledger = scheduler.ledger
    binding.ask(make_request("r1", tenant="a", expected_output_tokens=50), 0.0)
    assert ledger.shares(1)[0].service == 16_000 + 2 * 50
    asked = make_request("r2", 1001, tenant="a", expected_output_tokens=10**6)
    assert binding.ask(asked, 0.0) is None

    scheduler.first_token("r1", 0.8)
    assert released_ids(binding, 0.8) == ["r2"]

    assert ledger.shares(1)[0].service == 16_100 + 16 + 2 * MOST_RESERVED
    binding.settle("a", 10**6, 100)
    assert ledger.shares(1)[0].service == 16_100 + 16 + 2 * 100
    binding.settle("a", 10**6, MOST_RESERVED)
    assert ledger.shares(1)[0].service == 16_100 + 16 + 2 * 100
    binding.settle("a", 10**6, MOST_RESERVED + 5)
    assert ledger.shares(1)[0].service == 16_100 + 16 + 2 * 105


def test_the_prompt_that_another_worker_prefills_is_charged_where_it_is_decoded() -> None:
    binding, scheduler = make_binding(W1, fairness="locality")

    binding.ask(make_request("r1", tenant="a", prefilled=True), 0.0)

    assert scheduler.ledger.shares(1)[0].service == 16_000


def test_who_waits_keeps_its_place_when_the_way_of_sharing_changes() -> None:
    binding, scheduler = make_binding(W1)
    binding.ask(make_request("r1"), 0.0)
    ask_held(binding, *(make_request(f"q{number}", family=number) for number in range(1, 4)))

    for fairness in ("locality", "locality", "tokens", "locality"):
        binding.change(AdmissionOptions(max_backlog_ms=200.0, fairness=fairness))
    assert binding.cancel("q2")
    assert binding.expire(99.0) == ["q1", "q3"]

    assert (scheduler.ledger.shares(1)[0].waiting, release(binding, 99.0)) == (0, [])


@pytest.mark.parametrize("broken", [False, True])
def test_a_tenant_with_a_deficit_is_placed_anywhere_before_one_without_goes_ahead(
    monkeypatch: pytest.MonkeyPatch, *, broken: bool
) -> None:
    """Its prompt is cached at the busy worker, where it would rather wait. Where nobody can tell
    whether the other would be placed, it is.
    """
    binding, scheduler = make_binding(W1, W2, fairness="locality", quantum_tokens=1000)
    homes = [binding.ask(make_request(f"h{number}", family=number), 0.0) for number in range(2)]
    busy, free = homes
    assert isinstance(busy, Placed)
    assert isinstance(free, Placed)
    ask_held(
        binding,
        make_request("near", 1010, family=0, tenant="a"),
        *(make_request(f"b{number}", 100, family=10 + number, tenant="b") for number in range(3)),
    )
    scheduler.first_token(free.request_id, 0.5)
    if broken:
        monkeypatch.setattr(scheduler, "explain", Mock(side_effect=ArithmeticError("nan")))

    released = release(binding, 0.5)

    places = {one.request_id: one.verdict for one in released}
    assert {one.record.worker for one in places.values() if isinstance(one, Placed)} == {
        free.record.worker
    }
    assert "near" in places


def test_a_new_request_gives_way_to_who_waits_at_a_sibling() -> None:
    binding, scheduler = make_binding(W1, fairness="locality", max_backlog_ms=10_000.0)
    ledger = scheduler.ledger
    ledger.receive("r2", 1, Shares(1, 4096, [ShareRow(key_of("b"), 1, 0, 0, 1)]))
    assert isinstance(binding.ask(make_request("r1", tenant="a"), 0.0), Placed)

    assert binding.ask(make_request("r2", tenant="a"), 0.0) is None
    assert released_ids(binding, 0.0) == []
    ledger.receive("r2", 1, Shares(1, 0, [ShareRow(key_of("b"), 1, 0, 0, 0)]))
    assert released_ids(binding, 0.0) == ["r2"]


class BrokenHashes:
    """A prompt that cannot be hashed any more, once `broken`."""

    blocks = 4
    broken = False

    def upto(self, count: int) -> "array[int]":
        del count
        if self.broken:
            raise RuntimeError("broken")
        return array("Q", [11, 12, 13, 14])


def test_a_request_that_cannot_be_looked_up_ends_alone() -> None:
    binding, scheduler = make_binding(W1, fairness="locality")
    binding.ask(make_request("r1"), 0.0)
    hashes = BrokenHashes()
    ask_held(
        binding,
        RouteRequest("broken", hashes, 4000, tenant="a"),
        make_request("whole", family=2, tenant="a"),
    )
    hashes.broken = True
    scheduler.first_token("r1", 0.8)

    verdicts = {one.request_id: one.verdict for one in release(binding, 0.8)}

    assert isinstance(verdicts["broken"], RuntimeError)
    assert isinstance(verdicts["whole"], Placed)
    assert not binding.waiting


def test_a_request_that_cannot_take_its_place_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    binding, scheduler = make_binding(W1, fairness="locality")
    binding.ask(make_request("r1"), 0.0)
    before = binding.queue.statistics().queued
    hashes = BrokenHashes()
    find = scheduler.overlaps.find_groups

    def breaking(asked: Hashes, now: float) -> tuple[dict[WorkerId, int], Groups]:
        hashes.broken = True
        return find(NO_HASHES, now) if asked is hashes else find(asked, now)

    monkeypatch.setattr(scheduler.overlaps, "find_groups", breaking)
    with pytest.raises(RuntimeError, match="broken"):
        binding.ask(RouteRequest("broken", hashes, 4000, tenant="a"), 0.0)

    assert binding.queue.statistics().queued == before
    assert not binding.waiting
    assert scheduler.ledger.statistics().waiting == 0


CONTEXT = 16_000
"""Tokens of each context below: a cache of 1,200 blocks holds one."""


def make_governed(*workers: WorkerId, **options: object) -> tuple[LateBinding, Governor]:
    binding, scheduler = make_binding(*workers, max_backlog_ms=0.0)
    for worker in workers:
        scheduler.workers.describe(worker, WorkerInfo(total_blocks=1200))
    governor = Governor(GovernorOptions(**options), GovernedFleet(scheduler))  # type: ignore[arg-type]  # any option
    binding.governor = governor
    return binding, governor


def turn_of(name: str, **more: object) -> Turn:
    return Turn(request_id=name, agent=name, program=name, prompt_tokens=CONTEXT, **more)  # type: ignore[arg-type]  # any field


def ask_turn(binding: LateBinding, name: str, now: float, **wishes: object) -> object:
    request = make_request(name, family=ord(name[0]), turn=turn_of(name))
    return binding.ask(msgspec.structs.replace(request, **wishes), now)


def test_a_turn_without_room_waits_and_keeps_nobody_else_back() -> None:
    binding, governor = make_governed(W1)
    assert isinstance(ask_turn(binding, "a", 0.0), Placed)

    assert ask_turn(binding, "b", 1.0) is None
    assert (len(binding), binding.waiting, "b" in binding.governed) == (1, {}, True)
    assert isinstance(binding.ask(make_request("plain", family=7), 1.0), Placed)
    assert (release(binding, 2.0), release(binding, 2.1)) == ([], [])
    governor.ended(turn_of("a", final=True), TurnEnd(served=True, worker=W1), 3.0)
    (released,) = release(binding, 3.0)

    assert isinstance(released.verdict, Placed)
    assert governor.table.agents["b"].phase == "running"


def test_a_turn_that_no_worker_may_take_fails_at_once_or_when_it_is_let_go() -> None:
    binding, _ = make_governed(W1, max_wait_s=30.0)
    with pytest.raises(NoWorkerError):
        ask_turn(binding, "x", 0.0, excluded=frozenset({W1}))
    ask_turn(binding, "a", 0.0)
    assert ask_turn(binding, "b", 0.0) is None
    binding._scheduler.workers.membership.remove(W1)

    (released,) = release(binding, 30.0)

    assert isinstance(released.verdict, NoWorkerError)
    assert not len(binding)


def test_a_turn_is_placed_at_the_price_of_its_grant() -> None:
    scores: dict[tuple[float, float | None], float] = {}
    for share in (0.0, 1.0):
        for named in (None, 1.0):
            binding, governor = make_governed(W1)
            governor.lost_share = share
            placed = ask_turn(binding, "a", 0.0, overlap_score_weight=named)
            assert isinstance(placed, Placed)
            scores[share, named] = placed.record.score

    plain = scores.pop((0.0, None))
    assert scores.pop((1.0, None)) == pytest.approx(MOST_PREFILL * plain)
    assert [*scores.values()] == [plain, plain], "a request keeps the weight that it names"


def test_a_client_that_leaves_is_held_no_longer() -> None:
    binding, governor = make_governed(W1)
    ask_turn(binding, "a", 0.0)
    ask_turn(binding, "b", 0.0)

    assert binding.cancel("b")
    assert not binding.cancel("b")
    assert not governor.waiting


def test_whoever_is_held_is_told_how_long_and_let_go_by_then() -> None:
    binding, governor = make_governed(W1, max_wait_s=30.0)
    assert isinstance(ask_turn(binding, "a", 0.0), Placed)
    assert ask_turn(binding, "b", 1.0) is None

    most_s = binding.bound_s("b", 1.0, 1.0)
    assert most_s < 30.0
    assert 0.0 < binding.expected_wait_s("b", 1.0) < most_s
    governor.change(GovernorOptions(max_wait_s=600.0))
    assert (release(binding, 0.9 + most_s), released_ids(binding, 1.0 + most_s)) == ([], ["b"])


def test_what_is_queued_is_refused_before_its_client_gives_up() -> None:
    binding, _ = make_binding(W1, max_wait_s=30.0)
    binding.ask(make_request("r1"), 0.0)
    for name in ("r2", "r3"):
        assert binding.ask(make_request(name, family=1), 0.0) is None

    assert binding.bound_s("r2", 4.5, 0.0) == 4.5
    assert binding.bound_s("r3", float("inf"), 0.0) == 30.0
    assert binding.expected_wait_s("r2", 1.0) == binding.queue.retry_after_s()
    assert binding.expire(4.5) == ["r2"]
    assert binding.expire(29.9) == []
    assert binding.expire(30.0) == ["r3"]
