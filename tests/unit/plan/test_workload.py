from array import array
from pathlib import Path

import msgspec
import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.insight.trace_ring import Traced, TraceRow, mooncake_lines
from kvmesh.core.insight.weight_search import LoggedFleet, SimulatedFleetFacts
from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.plan.workload import Course, read_workload
from kvmesh_lab.replay.options import ReplayOptions

BLOCK = 128
FACTS = SimulatedFleetFacts((1.0, 1.0), 16, 16.5, 0.0152, 6.0, 2000)
FLEET = LoggedFleet("kv:predicted-time", 0.5, FACTS)


def rows(count: int = 40, gap_s: float = 0.2, cached: int = 2) -> list[TraceRow]:
    """Requests of four families, whose first `cached` blocks were known before."""
    return [
        TraceRow(
            at_s=100.0 + n * gap_s,
            ended_s=101.0 + n * gap_s,
            prompt_tokens=8 * BLOCK + 5,
            output_tokens=20,
            worker=WorkerId("w"),
            traced=Traced(0, array("Q", keys).tobytes()),
            ttft_ms=240.0,
            itl_ms=40.0,
            cached_tokens=cached * BLOCK,
        )
        for n in range(count)
        for keys in [[*range(n % 4 * 10, n % 4 * 10 + 4), *range(1000 + 9 * n, 1004 + 9 * n)]]
    ]


def write_log(path: Path, fleet: LoggedFleet | None = FLEET, **changes: object) -> Path:
    file = path / f"default_b{BLOCK}.jsonl"
    file.write_bytes(b"".join(mooncake_lines(rows(**changes), BLOCK, fleet)))  # type: ignore[arg-type]
    return file


def test_a_log_tells_how_its_requests_went_and_what_served_them(tmp_path: Path) -> None:
    found = read_workload(ReplayOptions(write_log(tmp_path), skip=10))

    assert found.fleet == FLEET
    assert (found.share, len(found.trace.requests), len(found.went)) == (0.5, 30, 30)
    assert found.measured()["ttft"] == [240.0] * 30
    assert found.measured()["e2e"] == [1000.0] * 30
    assert found.tokens_per_s == pytest.approx(2 * 30 * 1029 / 5.8)


def test_a_trace_tells_nothing_of_that(tmp_path: Path) -> None:
    found = read_workload(ReplayOptions(write_log(tmp_path, None)))

    assert (found.fleet, found.went, found.share) == (None, {}, 1.0)
    assert found.measured() == {"ttft": [], "tpot": [], "e2e": []}
    assert len(Course(found, BLOCK).counted) == 36, "the first tenth fills the caches"


def test_what_was_cached_before_the_log_is_sent_before_it(tmp_path: Path) -> None:
    found = read_workload(ReplayOptions(write_log(tmp_path)))
    course = Course(found, BLOCK)
    engine = EngineOptions(block_size=BLOCK)

    warm_s, work_s = course.warm_s([engine, engine])
    sent = course.requests(0, warm_s, 2.0)

    assert warm_s == pytest.approx(work_s)
    assert [one.trace.input_tokens for one in sent[:4]] == [2 * BLOCK] * 4
    assert [one.trace.index for one in sent[:5]] == [-1, -2, -3, -4, 0]
    assert {one.trace.output_tokens for one in sent[:4]} == {1}
    assert sent[0].hashes == sent[4].hashes[:2]
    assert sent[3].trace.timestamp_ms < sent[4].trace.timestamp_ms == warm_s * 2000.0
    assert len(course.counted) == 40


def test_seeds_move_arrivals_and_no_request_before_the_first(tmp_path: Path) -> None:
    course = Course(read_workload(ReplayOptions(write_log(tmp_path, cached=0))), BLOCK)

    plain, moved, again = (course.requests(seed, 0.0, 1.0) for seed in (0, 1, 1))

    assert course.warm_s([EngineOptions(block_size=BLOCK)]) == (0.0, 0.0)
    assert [one.trace.timestamp_ms for one in plain] == pytest.approx(
        [200.0 * n for n in range(40)]
    )
    assert moved == again
    gaps = [a.trace.timestamp_ms - b.trace.timestamp_ms for a, b in zip(plain, moved, strict=True)]
    assert 100.0 < max(map(abs, gaps)) <= 800.0
    assert min(one.trace.timestamp_ms for one in moved) >= 0.0


@pytest.mark.parametrize(
    ("fleet", "words"),
    [
        (msgspec.structs.replace(FLEET, share=0.0), "tells of no fleet"),
        (msgspec.structs.replace(FLEET, share=1e25), "tells of no fleet"),
        *(
            (LoggedFleet("kv", 1.0, msgspec.structs.replace(FACTS, **wrong)), "tells of no fleet")
            for wrong in (
                {"speeds": ()},
                {"speeds": (1.0,) * 2000},
                {"speeds": (1.0, -1.0)},
                {"prefill_token_ms": -0.1},
                {"prefill_fixed_ms": 1e25},
                {"block_size": 0},
                {"blocks": 10**25},
                {"replicas": 0},
            )
        ),
        (msgspec.structs.replace(FLEET, obstacle="it is odd"), "cannot be simulated: it is odd"),
    ],
)
def test_a_log_of_a_fleet_that_cannot_be_played_is_refused(
    tmp_path: Path, fleet: LoggedFleet, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        read_workload(ReplayOptions(write_log(tmp_path, fleet)))


def test_a_line_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = write_log(tmp_path)
    file.write_bytes(file.read_bytes().replace(b'"ttft_ms":240.0', b'"ttft_ms":-1', 7))

    with pytest.raises(ConfigError, match=r"_b128.jsonl:1: .*ttft_ms"):
        read_workload(ReplayOptions(file))
