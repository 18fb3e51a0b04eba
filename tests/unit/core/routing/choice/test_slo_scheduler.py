from math import inf
from typing import Any, Final

import pytest

from kvmesh._native import Placed
from kvmesh.core.admission.queue import AdmissionOptions, Refusal, WaitingRequest
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.targets import Targets
from kvmesh.core.dispatch.dispatch import Dispatch, Ending
from kvmesh.core.insight.decision_log import DecisionLog
from kvmesh.core.insight.explain import view_decision
from kvmesh.core.members.loads import Demand
from kvmesh.core.members.outcomes import SERVED, failed_attempt
from kvmesh.core.programs.held import GovernorOptions
from kvmesh.core.programs.turn import Turn
from kvmesh.core.routing.choice.slo_judge import SloOptions
from kvmesh.core.routing.decision import Forecast, RouteRequest
from kvmesh.core.routing.late_binding import LateBinding
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.routing.sessions import SessionOptions, Sessions
from kvmesh.errors import UnattainableError
from tests.unit.core.routing import scheduling
from tests.unit.core.routing.scheduling import W1, W2, decide

SOON: Final = Targets(1000.0, None)
"""A prompt of 16,000 tokens is believed to take 800 ms, at 0.05 ms a token."""


def make_scheduler(*workers: WorkerId, **options: Any) -> Scheduler:
    return scheduling.make_scheduler(*workers, events=False, routed=True, **options)


def make_request(
    request_id: str, blocks: int = 1000, family: int = 0, **wishes: object
) -> RouteRequest:
    return scheduling.make_request(request_id, blocks, family, **wishes)


def fill(scheduler: Scheduler, worker: WorkerId, tokens: int, name: str = "load") -> None:
    scheduler.sequences.add(f"{name}-{worker}", worker, Demand(tokens, tokens), 0.0)


def test_a_request_in_a_hurry_leaves_its_cache_for_a_worker_that_begins_sooner() -> None:
    scheduler = make_scheduler(W1, W2, cost="overlap-blocks")
    scheduler.schedule(make_request("first"), 0.0)
    home = scheduler.sequences.bookings["first"].worker
    away = W2 if home == W1 else W1
    scheduler.first_token("first", 0.8)
    fill(scheduler, home, 60_000)

    assert decide(scheduler, make_request("r1"), 1.0).worker == home
    decision = decide(scheduler, make_request("r2", targets=SOON), 1.0)

    assert decision.worker == away
    assert decision.forecast is not None
    assert decision.forecast == decision.best_forecast
    assert [one.worker for one in decision.forecasts] == [W1, W2]
    assert (
        "meets its targets with a chance of" in view_decision(decision, router="r", bucket="b").why
    )
    assert view_decision(decision, router="r", bucket="b").forecasts[0].worker == away


def forecast_of(scheduler: Scheduler, targets: Targets, now: float) -> Forecast:
    decision = scheduler.explain(make_request("r1", blocks=100, targets=targets), now)
    assert decision.forecast is not None
    return decision.forecast


def test_what_a_request_waited_counts() -> None:
    scheduler = make_scheduler(W1)
    scheduler.slo.arrive("r1", SOON, 5.0)
    scheduler.slo.arrive("r1", SOON, 5.4)
    now, later, over = (forecast_of(scheduler, SOON, at) for at in (5.0, 5.5, 6.0))

    assert (now.worker, now.waited_ms) == (W1, 0.0)
    assert now.ttft_ms == now.own_ms > 0.0
    assert (later.ttft_ms, later.waited_ms) == (now.ttft_ms + 500.0, 500.0)
    assert now.chance < later.chance < over.chance == 1.0
    assert scheduler.slo.waited_ms("nobody", 6.0) == 0.0


def test_the_chance_to_miss_is_that_of_either_target() -> None:
    scheduler = make_scheduler(W1)
    both, ttft_alone = Targets(200.0, 50.0), Targets(200.0, None)
    unknown = forecast_of(scheduler, both, 0.0)
    assert (unknown.tpot_ms, unknown.chance) == (
        0.0,
        forecast_of(scheduler, ttft_alone, 0.0).chance,
    )
    scheduler.speeds.output(W1, 100, 4.0)
    ttft, tpot = (
        forecast_of(scheduler, one, 0.0).chance for one in (ttft_alone, Targets(None, 50.0))
    )

    assert 0.0 < tpot < 1.0
    assert forecast_of(scheduler, both, 0.0).chance == pytest.approx(1 - (1 - ttft) * (1 - tpot))


@pytest.mark.parametrize(("priority", "worker"), [(0, W2), (9, W1)])
def test_the_formula_decides_among_those_that_hardly_miss(priority: int, worker: WorkerId) -> None:
    scheduler = make_scheduler(W1, W2, cost="overlap-blocks")
    held = make_request("first", blocks=100, pinned_worker=W2)
    scheduler.schedule(held, 0.0)
    scheduler.first_token("first", 0.1)
    fill(scheduler, W2, 10_000)
    asked = make_request("r1", blocks=100, targets=SOON, priority=priority)
    decision = decide(scheduler, asked, 0.2)

    here, there = decision.forecasts
    assert 0.0 < there.chance - here.chance < 0.1
    assert decision.worker == worker


def test_what_no_worker_can_serve_in_time_is_refused_and_books_nothing() -> None:
    scheduler = make_scheduler(W1, W2)
    fill(scheduler, W1, 400_000)
    fill(scheduler, W2, 300_000)

    with pytest.raises(UnattainableError) as caught:
        scheduler.schedule(make_request("r1", blocks=10, targets=SOON), 0.0)

    assert caught.value.retry_after_s == 15
    assert scheduler.sequences.bookings.get("r1") is None
    assert (scheduler.statistics().refused, scheduler.slo.statistics().results["refused"]) == (1, 1)
    assert decide(scheduler, make_request("r2", blocks=10), 0.0).worker == W2
    scheduler.judge.options = SloOptions(0.0)
    assert decide(scheduler, make_request("r3", blocks=10, targets=SOON), 0.0).worker == W2


def test_a_request_that_a_worker_failed_is_not_refused() -> None:
    scheduler = make_scheduler(W1, W2)
    request = make_request("r1", blocks=10, targets=SOON)
    first = scheduler.schedule(request, 0.0).record.decision.worker
    scheduler.finish("r1", 30.0, failed_attempt("cut"))
    again = make_request("r1", blocks=10, targets=SOON, excluded=frozenset({first}))

    decision = decide(scheduler, again, 30.0)

    assert decision.forecast is not None
    assert decision.forecast.chance == 1.0
    scheduler.first_token("r1", 30.1)
    scheduler.finish("r1", 31.0, SERVED)
    assert scheduler.slo.statistics().results["missed_ttft"] == 1


def test_a_soft_session_moves_when_its_worker_would_miss_the_targets() -> None:
    scheduler = make_scheduler(W1, W2)
    scheduler.sessions = Sessions(SessionOptions("soft", slack_ms=1e9))
    first = decide(scheduler, make_request("r1", session="s"), 0.0).worker
    scheduler.sessions.bind("s", first, 0.0)
    scheduler.first_token("r1", 0.8)
    fill(scheduler, first, 600_000)

    stays = decide(scheduler, make_request("r2", session="s"), 1.0)
    moves = decide(scheduler, make_request("r3", session="s", targets=SOON), 1.0)

    assert (stays.worker, stays.kept) == (first, True)
    assert moves.worker != first


@pytest.mark.parametrize("mode", ["round-robin", "least-loaded"])
def test_where_caches_do_not_count_nothing_is_refused_but_all_is_counted(mode: str) -> None:
    scheduler = make_scheduler(W1, mode=mode)
    fill(scheduler, W1, 600_000)
    decision = decide(scheduler, make_request("r1", targets=SOON), 0.0)
    scheduler.first_token("r1", 5.0)
    scheduler.finish("r1", 6.0, SERVED)

    assert decision.forecast is None
    assert scheduler.slo.statistics().results["missed_ttft"] == 1


def make_binding(scheduler: Scheduler, **options: object) -> LateBinding:
    return LateBinding(scheduler, AdmissionOptions(**options))  # type: ignore[arg-type]  # any option


def test_a_held_request_is_refused_as_soon_as_it_would_begin_too_late() -> None:
    scheduler = make_scheduler(W1)
    scheduler.judge.options = SloOptions(0.5)
    binding = make_binding(scheduler)
    assert isinstance(binding.ask(make_request("r1"), 0.0), Placed)
    assert binding.ask(make_request("r2", 200, 2, targets=SOON), 0.0) is None
    assert binding.ask(make_request("r3", 200, 3), 0.0) is None

    assert binding.release(0.5, bool) == []
    late = binding.release(0.9, bool)[0]

    assert (late.request_id, type(late.verdict)) == ("r2", UnattainableError)
    assert "r2" not in binding.waiting
    assert binding.queue.statistics().refused == 1
    assert not binding.cancel("r2")


def test_who_would_wait_too_long_is_refused_on_arrival() -> None:
    binding = make_binding(make_scheduler(W1))
    binding.ask(make_request("r1"), 0.0)
    for number in range(2, 12):
        assert binding.ask(make_request(f"r{number}", 1000, number), 0.0) is None

    with pytest.raises(UnattainableError):
        binding.ask(make_request("hurried", 100, 99, targets=SOON), 0.0)
    assert len(binding) == 10
    assert binding.ask(make_request("patient", 100, 98), 0.0) is None


def test_other_tenants_have_turns_in_between_only() -> None:
    binding = make_binding(make_scheduler(W1))
    binding.ask(make_request("r1", tenant="big"), 0.0)
    for number in range(2, 12):
        binding.ask(make_request(f"r{number}", 1000, number, tenant="big"), 0.0)
    newcomer = WaitingRequest("new", 1000, "small")

    assert binding.queue.tokens_before(newcomer, 0.0) == 1000 + 4096
    assert binding.queue.tokens == 160_000
    assert binding.ask(make_request("new", 10, 99, tenant="small", targets=SOON), 0.0) is None


def test_dispatch_answers_a_refusal_that_says_when_to_come_back() -> None:
    scheduler = make_scheduler(W1)
    dispatch = Dispatch(
        scheduler,
        DecisionLog(),
        lambda: 0.0,
        lambda _worker, _distrust: None,
        follows_events=False,
    )
    fill(scheduler, W1, 400_000)
    one = dispatch.enter(make_request("r1", blocks=10, targets=SOON), b"r1")
    answer = dispatch.decide(one, 0.0)

    assert isinstance(answer, Refusal)
    assert (answer.status, answer.code, answer.final) == (429, "slo_unattainable", False)
    assert answer.retry_after_s == 20
    other = dispatch.enter(make_request("r2", blocks=10, targets=Targets(1e6, None)), b"r2")
    assert isinstance(dispatch.decide(other, 0.0), Placed)
    dispatch.release(other, failed_attempt("cut"), 1.0)
    dispatch.finished(other, Ending(failed_attempt("cut"), "failed", 502), 1.0)
    assert scheduler.slo.statistics().results["unserved"] == 1


class _Waits:
    """A governor that holds every turn."""

    options = GovernorOptions()

    def ask(self, turn: Turn, now: float, among: object) -> None:
        """Hold it."""


def test_what_a_turn_waits_for_its_program_counts_for_its_targets() -> None:
    scheduler = make_scheduler(W1)
    binding = make_binding(scheduler)
    binding.governor = _Waits()  # type: ignore[assignment]  # nothing else is asked of it
    turn = Turn(request_id="r1", agent="a", program="a")

    assert binding.ask(make_request("r1", turn=turn, targets=SOON), 5.0) is None
    assert binding.ask(make_request("r2", turn=turn), 5.0) is None
    assert scheduler.slo.waited_ms("r1", 7.0) == pytest.approx(2000.0)
    assert [*scheduler.slo.open] == ["r1"]


def test_without_a_bound_targets_hold_what_they_let_wait_and_nobody_else() -> None:
    scheduler = make_scheduler(W1)
    binding = make_binding(scheduler, max_backlog_ms=0.0)
    soon = Targets(ttft_ms=2_000.0)
    busy = make_request("busy", 1500)
    assert binding.bound_ms("") == inf
    assert isinstance(binding.ask(busy, 0.0), Placed)

    assert binding.bound_ms("", soon) == 1_000.0
    assert binding.ask(make_request("long", 200, 2, targets=soon), 0.0) is None
    assert binding.ask(make_request("short", 100, 3, targets=soon), 0.0) is None
    assert isinstance(binding.ask(make_request("free", 10, 4), 0.0), Placed)
    assert binding.bound_ms("", soon) is None
    assert binding.expire(1.9) == []
    assert binding.bound_ms("") == inf
    assert binding.ask(make_request("told", 100, 5, targets=soon), 0.1) is None
    assert binding.bound_s("told", inf, 0.1) == pytest.approx(2.0)
    assert binding.bound_s("told", 0.5, 0.1) == pytest.approx(0.5)
    assert binding.expire(0.6) == ["told"]
    scheduler.first_token("busy", 0.5)
    scheduler.first_token("free", 0.5)

    assert [one.request_id for one in binding.release(0.5, bool)] == ["short", "long"]


@pytest.mark.parametrize("targets", [Targets(tpot_ms=50.0), Targets(ttft_ms=1_000.0)])
def test_nothing_is_held_for_a_time_per_token_or_where_nothing_is_refused(
    targets: Targets,
) -> None:
    scheduler = make_scheduler(W1)
    refuses = targets.ttft_ms is None
    scheduler.judge.options = SloOptions(0.3 if refuses else 0.0)
    binding = make_binding(scheduler, max_backlog_ms=0.0)
    fill(scheduler, W1, 600_000)

    assert isinstance(binding.ask(make_request("r1", targets=targets), 0.0), Placed)
