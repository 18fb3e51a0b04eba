import msgspec

from kvmesh.actors.cache_report import BATCH, SUMMARY, CacheReport
from kvmesh.actors.kernel import Log
from kvmesh.actors.messages import WorkerLoad
from kvmesh.core.blocks.events import ROOT, Cleared, Event, Removed, Stored, WorkerId
from kvmesh.core.blocks.hashing import pack_hashes

W = WorkerId("w")
THREE: list[Event] = [Stored(ROOT, pack_hashes([1, 2, 3]))]
ONE_LESS: list[Event] = [Removed(pack_hashes([3]))]
LOAD = WorkerLoad(used_blocks=25, total_blocks=100, cache_queried_tokens=1000, cache_hit_tokens=400)


def summaries(report: CacheReport, load: WorkerLoad, *seconds: float) -> list[Log]:
    return [line for second in seconds for line in report.sum_up(load, second)]


def test_a_batch_is_a_line_only_where_batches_are_asked_for() -> None:
    asked = CacheReport(W, each_batch=True)

    assert CacheReport(W).count(THREE) == ()
    assert asked.count([*THREE, *ONE_LESS]) == (
        Log("debug", BATCH, {"worker": W, "created": 3, "removed": 1}),
    )
    assert asked.count([Cleared()])[0].fields["removed"] == 2
    assert asked.count([*THREE, Cleared()])[0].fields == {
        "worker": W,
        "created": 3,
        "removed": 3,
    }


def test_a_summary_counts_since_the_one_before() -> None:
    report = CacheReport(W)
    report.count(THREE)
    (first,) = summaries(report, LOAD, 1.0, 2.0, 3.0, 4.0)
    report.count(ONE_LESS)
    later = msgspec.structs.replace(LOAD, cache_queried_tokens=1500, cache_hit_tokens=800)
    (second,) = summaries(report, later, 5.0, 30.0, 64.0, 65.0)

    assert (first.level, first.event) == ("info", SUMMARY)
    assert first.fields == {
        "worker": W,
        "kv_blocks_created": 3,
        "kv_blocks_removed": 0,
        "kv_blocks": 3,
        "cache_usage": 0.25,
        "hit_tokens": 400,
        "miss_tokens": 600,
        "hit_rate": 0.4,
    }
    assert second.fields["kv_blocks_removed"] == 1
    assert (second.fields["hit_tokens"], second.fields["miss_tokens"]) == (400, 100)
    assert second.fields["hit_rate"] == 0.8


def test_an_engine_that_began_anew_counts_from_nothing() -> None:
    report = CacheReport(W)
    summaries(report, LOAD, 0.0, 2.0)
    anew = msgspec.structs.replace(LOAD, cache_queried_tokens=100, cache_hit_tokens=10)

    (line,) = summaries(report, anew, 100.0, 102.0)

    assert (line.fields["hit_tokens"], line.fields["miss_tokens"]) == (10, 90)
