import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.engines.sse import Usage
from kvmesh.core.index.approx import new_approx
from kvmesh.core.insight import decision_log
from kvmesh.core.insight.decision_log import DecisionLog
from kvmesh.core.insight.decision_record import thin
from kvmesh.core.insight.traffic import sketch_quantile
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.routing.decision import Decision, RouteRequest, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from tests.reference.decision_log import decided, ended, naive_log, ring_of
from tests.reference.insight.decision_record import MAX_ENDED

HASHES = BlockHashes(list(range(160)), 16)


def scheduler(workers: int = 3) -> Scheduler:
    made = Scheduler(
        RouterOptions(),
        random.Random(1),
        membership=Membership(),
        sequences=new_sequences(16),
        routed=new_approx(),
    )
    for number in range(workers):
        made.workers.membership.add(f"w{number}", 0.0)
    return made


def decide(*, whole: bool = False, prompt: BlockHashes = HASHES, workers: int = 3) -> Decision:
    made = scheduler(workers)
    made.trace = whole
    return made.schedule(RouteRequest("r", prompt, prompt.tokens_count), 0.0).record.decision


def enter(log: DecisionLog, name: str, now: float = 1.0, decision: Decision | None = None) -> Any:
    return decided(log, name.encode(), decision or decide(), HASHES, now)


def test_only_so_many_candidates_are_kept_and_the_chosen_always() -> None:
    log = naive_log(max_candidates=7)
    records = [enter(log, f"r{number}", decision=decide(whole=True)) for number in range(4)]

    assert [len(one.decision.candidates) for one in records] == [1, 1, 3, 3]
    assert records[0].decision == thin(decide(whole=True))
    assert records[0].decision.formula_line(records[0].decision.worker).startswith("Formula for")
    assert log.statistics().candidates == 6


def test_a_retry_keeps_the_last_decision_and_why_it_came_to_it() -> None:
    log = naive_log()
    record = enter(log, "a", decision=decide(whole=True))
    first = record.decision.worker

    log.attempt_failed(record, "refused")
    ring_of(log).take_again(record, decide())
    thin_now = log.statistics().candidates
    log.attempt_failed(record, "reset")
    ring_of(log).take_again(record, decide(whole=True))

    assert (record.attempts, record.failures[0]) == (3, f"{first}: refused")
    assert record.failures[1].endswith(": reset")
    log.went_on(record, 311, 180.4)
    worker = record.decision.worker
    assert record.failures[2] == f"{worker}: goes on behind token 311, after 180 ms"
    log.resumed(record, 37)
    assert record.failures[3] == f"{worker}: its client asked for the stream again, behind token 37"
    assert (thin_now, log.statistics().candidates) == (0, 3)


@pytest.mark.parametrize("make", [naive_log, DecisionLog])
def test_so_many_decisions_a_second_are_weighed_in_full(make: Callable[..., DecisionLog]) -> None:
    log = make(whole_per_s=2)

    assert [log.may_weigh_all(now) for now in (5.0, 5.1, 5.2, 6.0, 6.9, 6.95)] == [
        *(True, True, False),
        *(True, True, False),
    ]


def test_changes_are_told_once_each_newest_state_only() -> None:
    log = naive_log()
    first, second = enter(log, "a"), enter(log, "b")
    seen = log.version
    ring_of(log).first_token(second, 1.1)
    ring_of(log).first_token(first, 1.2)
    ended(log, first, "finished", 200, None, 1.3)

    assert log.changed_after(0, 9) == [second, first]
    assert (log.changed_after(seen, 9), log.changed_after(log.version, 9)) == ([second, first], [])
    assert log.changed_after(0, 1) == [first]


def test_seconds_add_up_what_ended_in_them() -> None:
    log = naive_log()
    served = enter(log, "a", 1.0)
    ring_of(log).first_token(served, 1.5)
    ended(log, served, "finished", 200, Usage(161, 4, 96), 3.2)
    ended(log, enter(log, "b", 1.0), "finished", 200, None, 3.3)
    ended(log, enter(log, "c", 2.0), "cut", 200, None, 3.4)
    ended(log, enter(log, "d", 2.0), "client_gone", 0, None, 3.5)
    log.totals.refused(3.6)

    assert log.settle()
    first, second, third = log.seconds(0)

    assert (first.requests, second.requests) == (2, 2)
    assert (third.finished, third.failed, third.refused) == (2, 1, 1)
    assert (third.prompt_tokens, third.predicted_tokens) == (320, 0)
    assert (third.reported_tokens, third.cached_tokens) == (161, 96)
    assert (third.shadowed_tokens, third.round_robin_tokens) == (320, 0)
    assert sketch_quantile(third.ttft, 0.5) == pytest.approx(500.0, rel=0.03)
    assert log.ttft_ms(served.decision.worker) == 500.0
    assert log.ttft_ms(WorkerId("nobody")) is None


def test_settling_goes_on_where_its_budget_ended() -> None:
    log = naive_log()
    records = [enter(log, f"r{number}") for number in range(3)]
    for record in reversed(records):
        ended(log, record, "finished", 200, None, 2.0)

    assert [log.settle(budget_blocks=1) for _ in range(6)] == [False] * 5 + [True]
    assert log.seconds(2)[0].shadowed_tokens == 3 * 160


def test_what_comes_faster_than_it_is_read_is_dropped_and_counted_and_totals_stay_exact() -> None:
    log = naive_log(capacity=10)
    decision = decide()
    for turn in range(40):
        for number in range(50):
            ended(log, enter(log, f"{turn} {number}", 1.0, decision), "finished", 200, None, 2.0)
        log.settle(5 * decision_log.REQUEST_BLOCKS)

    while not log.settle():
        pass

    reported = log.statistics()
    assert (reported.read + reported.dropped, reported.read_ends) == (2000, 2000)
    assert 40 < reported.read < 400
    first, second = log.seconds(1)
    assert (first.requests, second.finished, second.prompt_tokens) == (2000, 2000, 2000 * 160)
    assert second.shadowed_tokens == reported.read * 160


def test_the_shadow_takes_dropped_requests_for_another_replicas() -> None:
    log = naive_log(capacity=1)
    decision = decide(workers=3)
    record = enter(log, "first", 1.0, decision)
    for number in range(2 * decision_log.SHARE_OF):
        record = enter(log, str(number), 1.0, decision)
        if number % 4 == 3:
            log.settle()

    assert log.statistics().dropped == 3 * log.statistics().read + 1
    # Of three workers, four times as many requests leave one to be modelled.
    assert record.round_robin_blocks == 10


def test_a_prompt_that_nobody_tokenized_is_in_no_shadow() -> None:
    log = naive_log()
    record = enter(log, "a")
    record.estimated = True

    ended(log, record, "finished", 200, None, 2.0)

    assert log.settle()
    assert record.round_robin_blocks is None
    assert (log.seconds(2)[0].shadowed_tokens, log.prefixes.nodes()) == (0, 0)


def test_ends_that_nobody_reads_are_dropped_and_counted() -> None:
    log = naive_log(capacity=1)
    record = enter(log, "a")

    for _ in range(MAX_ENDED + 3):
        ended(log, record, "finished", 200, None, 2.0)

    assert (log.statistics().dropped_ends, log.seconds(2)[0].finished) == (3, MAX_ENDED + 3)


def test_prompts_beyond_the_bound_are_left_out_of_the_shadow() -> None:
    log = naive_log(max_waiting_blocks=15)
    records = [enter(log, f"r{number}") for number in range(4)]
    for record in records:
        ring_of(log).first_token(record, 1.1)
        ended(log, record, "finished", 200, None, 2.0)

    log.settle()

    assert [one.round_robin_blocks for one in records] == [0, 0, None, None]
    assert log.statistics().dropped == 2
    second = log.seconds(2)[0]
    assert (second.prompt_tokens, second.shadowed_tokens) == (640, 320)
    assert sum(second.ttft.values()) == 2 * sum(second.round_robin_ttft.values()) == 4


def test_latencies_of_long_gone_workers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_log, "MAX_WORKERS", 1)
    log = naive_log()
    for number, name in enumerate(("old", "new")):
        plain = decide()
        worker = WorkerId(name)
        chosen = msgspec.structs.replace(plain.chosen, worker=worker)
        decision = msgspec.structs.replace(
            plain, worker=worker, chosen=chosen, candidates=(chosen,)
        )
        record = enter(log, name, 1.0 + number, decision)
        ring_of(log).first_token(record, 2.0 + number)
        ended(log, record, "finished", 200, None, 3.0)

    log.settle()

    assert log.ttft_ms(WorkerId("old")) is None
    assert log.ttft_ms(WorkerId("new")) == 1000.0
