import re
from typing import Any

import pytest

from kvmesh._native import ActiveSequences
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.members.loads import Demand, new_sequences, new_speeds
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import SERVED, Attempt, Verdict, failed_attempt, status_attempt
from kvmesh.core.members.worker_info import BusyThresholds, LoadReport, Trust, WorkerInfo
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.registry import WorkerRegistry
from kvmesh.errors import NoWorkerError

W1, W2, W3 = WorkerId("w1"), WorkerId("w2"), WorkerId("w3")


def make_registry(*workers: WorkerId) -> tuple[WorkerRegistry, ActiveSequences]:
    membership, sequences = Membership(), new_sequences(16)
    for worker in workers:
        membership.add(worker, 0.0)
    return WorkerRegistry(membership, sequences), sequences


def make_request(**wishes: object) -> RouteRequest:
    return RouteRequest("r1", BlockHashes.of([], 16), 100, **wishes)  # type: ignore[arg-type]  # any wish


def eligible(registry: WorkerRegistry, **wishes: object) -> tuple[WorkerId, ...]:
    return registry.eligible(make_request(**wishes), 0.0)


def refusal(
    registry: WorkerRegistry, words: str | None = None, *, now: float = 0.0, **wishes: object
) -> NoWorkerError:
    """Return why no worker may take the request, with `words` in it."""
    with pytest.raises(NoWorkerError, match=words and re.escape(words)) as caught:
        registry.eligible(make_request(**wishes), now)
    return caught.value


def test_workers_are_filtered_by_model_where_they_name_models() -> None:
    registry, _ = make_registry(W1, W2, W3)
    registry.describe(W1, WorkerInfo(models=("llama",)))
    registry.describe(W2, WorkerInfo(models=("llama", "coder")))

    assert eligible(registry, model="coder") == (W2, W3)
    assert eligible(registry, model="llama") == (W1, W2, W3)
    assert eligible(registry, model="llama") is registry.everyone(0.0)
    assert eligible(registry) == (W1, W2, W3)


def test_requests_for_ever_new_models_do_not_fill_the_memory() -> None:
    registry, _ = make_registry(W1, W2)
    registry.describe(W1, WorkerInfo(models=("a",)))

    for number in range(300):
        assert eligible(registry, model=f"m{number}") == (W2,)

    assert len(registry._serving) <= 64


def test_no_worker_is_an_error_with_a_reason_for_each() -> None:
    registry, _ = make_registry(W1, W2, W3)
    registry.describe(W1, WorkerInfo(models=("llama",)))
    registry.membership.health.asks = True
    registry.note(W2, failed_attempt("refused"), 0.0)
    wishes: dict[str, Any] = {"excluded": {W3}, "allowed_workers": frozenset([W1, W2, W3])}

    assert str(refusal(registry, model="coder", **wishes)) == (
        "request r1: no worker may take it (w1: does not serve 'coder'; "
        "w2: does not answer its health check, 1 of 1 failed; w3: already failed this request)"
    )


def test_reasons_are_cut_and_an_empty_mesh_says_so() -> None:
    names = [WorkerId(f"w{number:02d}") for number in range(11)]
    registry, _ = make_registry(*names)

    refusal(registry, "w07: not allowed for this request; and 3 more", allowed_workers=frozenset())
    empty, _ = make_registry()
    refusal(empty, "no worker has joined")


def test_a_worker_that_was_never_there_does_not_exist_and_is_not_waited_for() -> None:
    registry, _ = make_registry(*(WorkerId(f"w{number:02d}") for number in range(9)))

    caught = refusal(registry, now=3.5, pinned_worker=WorkerId("nobody"))

    assert str(caught) == (
        "the worker 'nobody' does not exist; known are: w00, w01, w02, w03, w04, w05, w06, w07, …"
    )
    assert (caught.unknown_worker, caught.lasting) == (True, True)


def test_a_worker_that_left_or_may_not_have_been_heard_yet_may_come_back() -> None:
    registry, _ = make_registry(W1, W2)
    registry.describe(W1, WorkerInfo())
    registry.remove(W1)
    registry.membership.remove(W1)

    for worker, now, unknown in ((W1, 60.0, False), (W3, 3.25, False), (W3, 3.5, True)):
        assert refusal(registry, now=now, pinned_worker=worker).unknown_worker is unknown


def test_a_request_that_only_its_own_wishes_leave_without_a_worker_says_so() -> None:
    registry, _ = make_registry(W1, W2)
    empty, _ = make_registry()
    wishes: list[dict[str, Any]] = [
        {"labels": frozenset(["nobody"])},
        {"allowed_workers": frozenset([WorkerId("nobody")])},
        {"pinned_worker": WorkerId("nobody")},
    ]
    gone = frozenset([W1, W2])

    for one in wishes:
        assert refusal(registry, **one).wished
        assert not refusal(empty, **one).wished
        assert not refusal(registry, **one, excluded=gone).wished
    assert not refusal(registry, excluded=gone).wished


def test_labels_are_asked_for_and_taints_tolerated() -> None:
    registry, _ = make_registry(W1, W2, W3)
    registry.describe(W1, WorkerInfo(labels=frozenset(["gpu:h100", "zone:a"])))
    registry.describe(W2, WorkerInfo(taints=frozenset(["batch"])))
    asking = make_request(labels=frozenset(["gpu:h100"]))

    assert eligible(registry) == (W1, W3)
    assert eligible(registry, tolerations=frozenset(["batch"])) == (W1, W2, W3)
    assert registry.eligible(asking, 0.0) == (W1,)
    refusal(registry, "w2: tainted batch", pinned_worker=W2)
    refusal(registry, "w3: has no label zone:b", labels=frozenset(["zone:b"]))

    registry.describe(W2, WorkerInfo())
    assert eligible(registry) is registry.everyone(0.0)


def test_plain_requests_are_looked_at_one_by_one_while_there_are_thresholds() -> None:
    registry, _ = make_registry(W1, W2)
    assert len(registry.plain("", 0.0)) == 2

    registry.thresholds = BusyThresholds(active_prefill_tokens=1000)
    assert registry.plain("", 0.0) == ()


def test_busy_workers_are_left_out_above_the_thresholds() -> None:
    registry, sequences = make_registry(W1, W2, W3)
    registry.describe(W1, WorkerInfo(total_blocks=10))
    sequences.add("a", W1, Demand(160, 160), now=0.0)
    sequences.add("b", W2, Demand(2000, 2000), now=0.0)

    registry.thresholds = BusyThresholds(active_prefill_tokens=1000)
    assert eligible(registry) == (W1, W3)
    registry.thresholds = BusyThresholds(active_decode_blocks=0.9)
    assert eligible(registry) == (W2, W3)
    registry.thresholds = BusyThresholds(active_decode_blocks=1.0, active_prefill_tokens=5000)
    assert eligible(registry) == (W1, W2, W3)

    registry.thresholds = BusyThresholds(0.5, 100)
    sequences.add("c", W3, Demand(200, 200), now=0.0)
    assert refusal(registry, "w1: busy: 160 prefill tokens queued").busy
    assert not refusal(registry, "w9: unknown", pinned_worker=WorkerId("w9")).busy
    sequences.first_token("a", 1.0)
    refusal(registry, "w1: busy: 10 of 10 blocks in use")


def test_workers_without_trusted_events_are_known() -> None:
    registry, _ = make_registry(W1)

    for trust, distrusted in [
        (Trust.EXACT, set()),
        (Trust.DEGRADED, {W1}),
        (Trust.CATCHING_UP, set()),
        (Trust.APPROX, {W1}),
    ]:
        registry.describe(W1, WorkerInfo(trust=trust))
        assert registry.distrusted == distrusted
        assert registry.info(W1).trust is trust

    registry.remove(W1)
    assert registry.distrusted == set()


def test_capacity_is_the_engines_word_first() -> None:
    registry, _ = make_registry(W1)
    assert (registry.capacity_blocks(W1), registry.info(W1)) == (0, WorkerInfo())

    registry.describe(W1, WorkerInfo(total_blocks=100))
    assert registry.capacity_blocks(W1) == 100
    registry.report(W1, LoadReport(total_blocks=90))
    assert registry.capacity_blocks(W1) == 90
    registry.describe(W1, WorkerInfo(total_blocks=80))
    assert registry.capacity_blocks(W1) == 90
    registry.remove(W1)
    registry.remove(W1)
    assert registry.capacity_blocks(W1) == 0


def test_load_nobody_booked_counts_after_three_reports_in_a_row() -> None:
    registry, sequences = make_registry(W1)
    sequences.add("r", W1, Demand(160, 160), now=0.0)
    loads = sequences.loads(W1)
    foreign = LoadReport(running_requests=4, waiting_requests=1, used_blocks=110, total_blocks=500)

    for _ in range(2):
        registry.report(W1, foreign)
        assert loads.active_requests == 1
    registry.report(W1, foreign)

    assert (loads.active_requests, loads.active_blocks, loads.prompt_tokens) == (5, 110, 160 + 1600)
    registry.report(W1, foreign)
    assert (loads.active_requests, loads.active_blocks) == (5, 110)
    registry.report(W1, LoadReport(1, 0, 10, 500))
    assert (loads.active_requests, loads.active_blocks) == (1, 10)


def test_blocks_in_use_are_known_from_a_fresh_report_that_tells_them() -> None:
    registry, _ = make_registry(W1)
    assert registry.used_blocks(W1) is None

    registry.report(W1, LoadReport(running_requests=1))
    untold = registry.used_blocks(W1)
    registry.report(W1, LoadReport(used_blocks=7, total_blocks=90))
    reported = registry.used_blocks(W1)
    registry.forget_report(W1)

    assert (untold, reported, registry.used_blocks(W1)) == (None, 7, None)


def test_an_engines_measured_prefill_is_learned() -> None:
    membership, sequences, speeds = Membership(), new_sequences(16), new_speeds()
    registry = WorkerRegistry(membership, sequences, speeds)

    registry.report(W1, LoadReport(prefilled_tokens=50_000, prefill_busy_us=10_000_000))

    ratio = speeds.prefill_ratio(W1)
    assert ratio.ms / ratio.tokens == pytest.approx(0.2)


def test_a_report_older_than_the_last_bookings_does_no_harm() -> None:
    registry, sequences = make_registry(W1)
    for number in range(5):
        sequences.add(f"r{number}", W1, Demand(160, 160), now=0.0)

    for _ in range(5):
        registry.report(W1, LoadReport(total_blocks=500))

    assert sequences.loads(W1).active_requests == 5


def test_states_stay_live_when_loads_are_dropped_elsewhere() -> None:
    registry, sequences = make_registry(W1)
    names = eligible(registry)
    (before,) = registry.states(names)
    assert registry.states(names)[0] is before

    sequences.remove_worker(W1)
    sequences.add("r", W1, Demand(160, 160), now=0.0)
    (after,) = registry.states(eligible(registry))

    assert after.loads is sequences.loads(W1)


def test_a_model_nobody_serves_is_unknown_only_when_all_say_what_they_serve() -> None:
    registry, _ = make_registry(W1, W2)
    registry.describe(W1, WorkerInfo(models=("a",)))
    registry.describe(W2, WorkerInfo(models=("b",)))

    unknown = refusal(registry, "the model 'c' does not exist", model="c")
    pinned = refusal(registry, "no worker may take it", model="b", pinned_worker=W1)

    assert unknown.unknown_model
    assert not pinned.unknown_model


def test_models_of_workers_that_left_do_not_fill_the_memory() -> None:
    registry, _ = make_registry(W1)
    registry.describe(W1, WorkerInfo(models=("a",)))
    for number in range(600):
        registry.describe(W2, WorkerInfo(models=(f"m{number}",)))
        registry.remove(W2)

    assert refusal(registry, model="m0").unknown_model
    assert len(registry._refusals._models) <= 256


ERROR = status_attempt(500, 0.25)


def price(registry: WorkerRegistry, worker: WorkerId) -> tuple[float, float]:
    state = registry.state(worker)
    return state.failure_share, state.lost_ms


def test_who_fails_gets_a_price_that_fades_and_ends() -> None:
    registry, _ = make_registry(W1, W2)

    assert registry.note(W1, ERROR, 0.0) is None

    share, lost_ms = price(registry, W1)
    assert share > 0.3
    assert (lost_ms, price(registry, W2)) == (250.0, (0.0, 0.0))
    registry.settle_prices(10.0)
    assert 0.0 < price(registry, W1)[0] < share
    registry.note(W1, Attempt(Verdict.SERVED, "whole"), 10.0)
    assert price(registry, W1)[0] < share / 2
    registry.settle_prices(200.0)
    assert price(registry, W1) == (0.0, 0.0)
    registry.settle_prices(300.0)
    assert price(registry, W1) == (0.0, 0.0)


def test_an_answer_of_who_never_failed_is_counted_and_costs_nothing() -> None:
    registry, _ = make_registry(W1)

    assert registry.note(W1, SERVED, 0.0) is None
    assert registry.note(W1, SERVED, 1.0) is None

    assert (registry.membership.health.recent(W1), price(registry, W1)) == ((0, 2), (0.0, 0.0))


def test_the_end_of_a_request_at_a_worker_that_left_is_nobodys() -> None:
    registry, _ = make_registry(W1)

    assert registry.note(W2, ERROR, 0.0) is None
    assert registry.note(W2, SERVED, 0.0) is None
    registry.settle_prices(1.0)

    assert W2 not in registry.known
    registry.note(W1, ERROR, 0.0)
    registry.remove(W1)
    registry.membership.remove(W1)
    registry.settle_prices(1.0)
    assert W1 not in registry.known


def test_forgiven_requests_cost_their_workers_nothing() -> None:
    registry, _ = make_registry(W1, W2)
    registry.note(W1, ERROR, 0.0, "poison")
    registry.note(W2, ERROR, 0.0, "poison")
    registry.note(W2, ERROR, 0.0, "own")

    registry.forgive("poison", 0.1)

    assert price(registry, W1) == (0.0, 0.0)
    assert price(registry, W2)[0] > 0.3


def test_to_try_who_failed_is_better_than_to_reject() -> None:
    registry, sequences = make_registry(W1, W2, W3)
    registry.describe(W1, WorkerInfo(models=("llama",)))
    registry.describe(W2, WorkerInfo(models=("coder",)))
    registry.note(W1, failed_attempt("cut"), 0.0)
    assert registry.everyone(0.0) == (W2, W3)
    alone = make_request(model="llama", excluded=frozenset([W3]))

    assert registry.eligible(alone, 0.0) == (W1,), "nobody else serves the model"
    assert eligible(registry, excluded=frozenset([W2, W3])) == (W1,)
    for other in ({"excluded": frozenset([W1, W3])}, {"pinned_worker": W1}):
        refusal(registry, "w1: ", model="llama", **other)
    registry.thresholds = BusyThresholds(active_prefill_tokens=10)
    sequences.add("busy", W3, Demand(100, 100), 0.0)
    assert refusal(registry, model="llama").busy, "who is well will have room again"


def test_workers_left_out_of_a_request_are_told_with_the_reason_of_each() -> None:
    registry, _ = make_registry(W1, W2, W3)
    registry.describe(W2, WorkerInfo(models=("llama",)))
    registry.membership.observe(W3, 1, 0.0, draining=True)

    found = registry.left_out(make_request(model="coder"), 0.0)

    assert [(one.worker, one.why) for one in found.named] == [
        (W2, "does not serve 'coder'"),
        (W3, "draining"),
    ]
    assert registry.left_out(make_request(), 0.0).count == 1


def test_a_worker_for_whole_requests_is_expected_where_one_is_or_left_or_may_not_be_known_yet() -> (
    None
):
    registry, _ = make_registry()
    half = WorkerInfo(taints=frozenset(["kvmesh/decode"]))
    expected = [registry.expects_whole()]

    registry.describe(W1, half)
    registry.describe(W2, WorkerInfo())
    expected.append(registry.expects_whole())
    registry.describe(W2, half)  # its engine told what it is
    expected.append(registry.expects_whole())
    registry.remove(W2)
    registry.settled = False
    expected.append(registry.expects_whole())
    registry.settled = True
    expected.append(registry.expects_whole())
    registry.describe(W2, WorkerInfo(taints=frozenset(["gpu"])))
    registry.remove(W2)
    expected.append(registry.expects_whole())

    assert expected == [False, True, False, True, False, True]
