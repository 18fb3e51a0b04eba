"""What the governor of programs is told of engines' speeds."""

import pytest

from kvmesh.core.members.worker_info import LoadReport
from kvmesh.core.routing.program_fleet import GovernedFleet
from kvmesh.core.routing.scheduler import Scheduler
from tests.unit.core.routing.scheduling import W1, W2, make_scheduler

MS_PER_TOKEN = 0.5
FIXED_MS = 100.0


def computed(*sizes: int) -> Scheduler:
    """Return a scheduler whose first worker computed prompts of so many tokens."""
    scheduler = make_scheduler(W1, W2, events=False, routed=True)
    for number, tokens in enumerate(sizes):
        service_s = (FIXED_MS + MS_PER_TOKEN * tokens) / 1000.0
        scheduler.speeds.first_token(W1, tokens, service_s, float(number))
    return scheduler


def test_a_belief_is_not_passed_off_as_seen() -> None:
    fleet = GovernedFleet(computed(1000, 1000))

    assert fleet.seen_ms_per_token(W1, 1000) > 0.0
    assert fleet.seen_ms_per_token(W2, 1000) == 0.0
    assert fleet.ms_per_token(W2) > 0.0


def test_a_context_is_priced_with_the_fixed_time_of_its_step() -> None:
    fleet = GovernedFleet(computed(*[300, 3000] * 200))

    for tokens in (300, 3000):
        seen_ms = tokens * fleet.seen_ms_per_token(W1, tokens)
        assert seen_ms == pytest.approx(FIXED_MS + MS_PER_TOKEN * tokens, rel=0.05)
    assert fleet.seen_ms_per_token(W1, 0) > 0.0


def test_what_events_tell_of_needs_no_answers() -> None:
    scheduler = make_scheduler(W1, W2, routed=True)
    fleet = GovernedFleet(scheduler)

    scheduler.workers.report(W1, LoadReport(total_blocks=100, prompt_slots=4))

    assert (fleet.contexts(W1), fleet.capacity_tokens(W1)) == (0, 1600)
    assert (fleet.contexts(W2), fleet.capacity_tokens(W2)) == (0, 0)
    scheduler.workers.forget_report(W1)
    assert scheduler.workers.state(W1).report == LoadReport(total_blocks=100, prompt_slots=4)


def test_slots_outlast_a_report_that_is_too_old() -> None:
    scheduler = make_scheduler(W1, W2, events=False, routed=True)
    scheduler.workers.report(W1, LoadReport(prompt_slots=4, slot_tokens=160))

    scheduler.workers.forget_report(W1)

    fleet = GovernedFleet(scheduler)
    assert (fleet.contexts(W1), fleet.capacity_tokens(W1)) == (4, 640)
