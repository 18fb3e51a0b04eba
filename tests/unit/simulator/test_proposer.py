import io
import math
from collections.abc import Callable
from itertools import count

import msgspec
import pytest

from benchmarks.quality.phases import BLOCK, PHASES, prefill_heavy
from kvmesh.core.insight.weight_search import Found, SearchTask, SimulatedFleetFacts
from kvmesh.errors import ConfigError
from kvmesh_lab.simulator.calibration import fleet_options
from kvmesh_lab.simulator.propose import propose
from kvmesh_lab.simulator.proposer import Proposer
from kvmesh_lab.traces.trace import TraceRequest

FACTS = SimulatedFleetFacts(
    speeds=(1.0, 1.0), block_size=16, prefill_fixed_ms=16.0, prefill_token_ms=0.018, blocks=16_384
)
DEFAULT = {"overlap_score_weight": 1.0}
REQUESTS = prefill_heavy(160, 10.0, 3)


def ticking() -> Callable[[], float]:
    """A clock that shows one second more each time it is asked."""
    ticks = count()
    return lambda: float(next(ticks))


def task(**changes: object) -> SearchTask:
    made = SearchTask(
        cost="prefill-decode",
        default=DEFAULT,
        present=DEFAULT,
        fleet=FACTS,
        block_tokens=BLOCK,
        ttft_ms=None,
        seconds=1e9,
    )
    return msgspec.structs.replace(made, **changes)


def lines(requests: list[TraceRequest]) -> bytes:
    rows = (
        {
            "timestamp": one.timestamp_ms,
            "input_length": one.input_tokens,
            "output_length": one.output_tokens,
            "hash_ids": one.block_ids,
        }
        for one in requests
    )
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def test_weights_that_do_better_are_found_and_judged_on_requests_held_out() -> None:
    found = Proposer(task(seconds=5.0), REQUESTS, ticking()).run()

    assert found.best.searched < 0.98
    assert found.best.weights["overlap_score_weight"] > 1.0
    assert found.best.held_out != found.best.searched
    assert found.present == found.default
    assert (found.default.held_out, found.default.searched) == (1.0, 1.0)
    assert (found.requests, found.measured_ttft_ms) == (160, None)


def test_a_search_ends_with_its_time_and_gives_the_best_so_far() -> None:
    whole = Proposer(task(requests=50), REQUESTS, ticking()).run()
    short = Proposer(task(requests=50, seconds=4.0), REQUESTS, ticking()).run()
    begun = Proposer(task(requests=50, seconds=0.0), REQUESTS, ticking()).run()

    assert begun.trials < short.trials < whole.trials
    assert begun.best.weights == DEFAULT


def test_a_candidate_that_is_named_is_judged_in_place_of_a_search() -> None:
    herding = "kv:overlap-load:weight_cache=1000:weight_load=0"

    found = Proposer(task(candidate=herding), PHASES["hot-prefix"](160, 30.0, 3), ticking()).run()

    assert found.best.held_out > 1.25 * found.present.held_out
    assert found.trials == 6


def test_the_simulated_fleet_is_brought_near_the_measured_one() -> None:
    """Learned speeds hold waits for others: 40 ms a prefill and a token, where 12 and 6 are so."""
    real = task(fleet=msgspec.structs.replace(FACTS, prefill_fixed_ms=12.0, output_token_ms=6.0))
    seen = Proposer(real, REQUESTS)._play("kv:prefill-decode", 1.0)
    learned = msgspec.structs.replace(FACTS, prefill_fixed_ms=40.0, output_token_ms=40.0)

    found = Proposer(
        task(fleet=learned, ttft_ms=seen.ttft_ms_p50, itl_ms=seen.itl_ms_p50, seconds=0.0),
        REQUESTS,
        ticking(),
    ).run()

    assert found.simulated_ttft_ms == pytest.approx(seen.ttft_ms_p50, rel=0.3)
    assert found.simulated_itl_ms == pytest.approx(seen.itl_ms_p50, rel=0.3)


def test_a_share_of_the_families_is_played_the_faster() -> None:
    whole, half = (
        Proposer(task(share=share), REQUESTS)._play("kv:prefill-decode", 1.0) for share in (1, 0.25)
    )

    assert half.held_out > whole.held_out


def test_a_fleet_of_unknown_sizes_is_assumed_as_in_the_mocker() -> None:
    unknown = msgspec.structs.replace(FACTS, blocks=0, speeds=(1.0, 0.5), replicas=2)
    options = fleet_options(unknown, BLOCK, 8.0)

    assert options.engine.num_gpu_blocks == 1_048_576 // BLOCK
    assert (options.engines, options.routers, options.speed_ratios) == (2, 2, (1.0, 0.5))
    assert options.engine.timing.decode_base == 8.0
    assert options.engine.timing.prefill_per_token == 0.018


def test_every_formula_with_weights_can_be_searched() -> None:
    for cost, weights in (
        ("dynamo", {"overlap_score_weight": 1.0, "overlap_score_credit_decay": 0.0}),
        ("sglang", {"cache_threshold": 0.3, "balance_abs_threshold": 64.0}),
    ):
        made = task(cost=cost, default=weights, present=weights, seconds=2.0)
        found = Proposer(made, REQUESTS[:60], ticking()).run()
        assert found.best.weights.keys() >= weights.keys()
        assert math.isfinite(found.best.held_out)


def test_a_task_and_its_trace_come_on_one_stream() -> None:
    reported: list[float] = []
    text = msgspec.json.encode(task(seconds=0.5)) + b"\n" + lines(REQUESTS[:60])

    found = msgspec.json.decode(propose(io.BytesIO(text), reported.append), type=Found)

    assert reported == [0.5]
    assert found.requests == 60


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "no task"),
        (b'{"cost": 1}\n', "no task"),
        (msgspec.json.encode(task()) + b"\n" + lines(REQUESTS[:10]), "10 requests are too few"),
        (msgspec.json.encode(task()) + b"\nnonsense\n", "standard input:1"),
    ],
)
def test_what_cannot_be_searched_is_told(text: bytes, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        propose(io.BytesIO(text), lambda _: None)
