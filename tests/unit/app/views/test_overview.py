import msgspec
import pytest

from kvmesh.app.views.overview import (
    PrefixRow,
    ReplicaRow,
    WorkerRow,
    compare_replicas,
    merge_prefixes,
    merge_warnings,
    merge_workers,
    sum_buckets,
)


def replica(name: str, sequence: int = 10, digest: str = "aa", **more: object) -> ReplicaRow:
    row = ReplicaRow(
        replica=name,
        bucket="chat",
        url="",
        ready=True,
        reason="",
        draining=False,
        kv_events=True,
        created="c",
        applied_sequence=sequence,
        digest=digest,
        scope="s",
    )
    return msgspec.structs.replace(row, **more)


def worker(name: str, bucket: str, *, usable: bool = True) -> WorkerRow:
    return WorkerRow(
        worker=name,
        bucket=bucket,
        url="",
        models=(),
        trust="exact",
        usable=usable,
        why_not="",
        used_blocks=5,
        total_blocks=10,
        cached_blocks=0,
        running_requests=0,
        waiting_requests=0,
        active_requests=2,
        active_blocks=0,
        prefill_tokens=0,
        ms_per_token=0.1,
        ttft_ms=None,
    )


def agreements(*rows: ReplicaRow) -> list[str]:
    return [row.agreement for row in compare_replicas(rows)]


def test_different_digests_at_the_same_place_disagree() -> None:
    assert agreements(replica("a"), replica("b", digest="bb")) == ["disagrees", "disagrees"]


def test_what_replicas_compared_themselves_counts_meanwhile() -> None:
    rows = (
        replica("a", digests_compared=9),
        replica("b", 11, "bb", digests_compared=9, mismatches=1),
    )

    assert agreements(*rows) == ["agrees", "unchecked"]


def test_lag_is_behind_the_furthest_of_the_same_stream() -> None:
    rows = (
        replica("c", 3),
        replica("b", 10),
        replica("a", 7),
        replica("d", 1, bucket="code"),
        replica("e", 1, created="new"),
    )

    lags = [(row.replica, row.lag) for row in compare_replicas(rows)]

    assert lags == [("a", 3), ("b", 0), ("c", 7), ("e", 0), ("d", 0)]


def test_buckets_are_summed_even_with_replicas_or_workers_alone() -> None:
    rows = sum_buckets(
        [replica("a"), replica("b", ready=False)],
        [worker("w0", "chat"), worker("w1", "chat", usable=False), worker("w0", "code")],
    )

    assert [(row.bucket, row.ready_replicas, row.replicas) for row in rows] == [
        ("chat", 1, 2),
        ("code", 0, 0),
    ]
    assert [(row.usable_workers, row.workers, row.active_requests) for row in rows] == [
        (1, 2, 4),
        (1, 1, 2),
    ]
    assert (rows[0].used_blocks, rows[0].total_blocks) == (10, 20)


def test_a_worker_is_as_its_busiest_replica_sees_it_with_the_worst_of_all() -> None:
    def seen(**more: object) -> WorkerRow:
        return msgspec.structs.replace(worker("w0", "chat"), **more)

    views = [
        [seen(active_requests=1, cached_blocks=9, ttft_ms=5.0, failures=2, attempts=4)],
        [seen(active_requests=3, cached_blocks=4, trust="degraded", figures={"odd": 1})],
        [seen(active_requests=2, usable=False, why_not="ejected", stage="ejected", failures=3)],
    ]

    (whole,) = merge_workers(views)

    assert (whole.active_requests, whole.cached_blocks, whole.ttft_ms) == (3, 9, 5.0)
    assert (whole.trust, whole.usable, whole.why_not) == ("degraded", True, "")
    assert (whole.stage, whole.failures, whole.attempts) == ("ejected", 3, 0)
    assert whole.figures == {"odd": 1}


def test_a_worker_that_no_replica_may_use_says_why_not() -> None:
    out = msgspec.structs.replace(worker("w0", "chat", usable=False), why_not="draining")

    rows = merge_workers([[out, worker("w1", "chat")], [out]])

    assert [(row.worker, row.usable, row.why_not) for row in rows] == [
        ("w0", False, "draining"),
        ("w1", True, ""),
    ]


def prefix(key: str, share: float, parent: str = "", **more: object) -> PrefixRow:
    row = PrefixRow(
        key=key,
        parent=parent,
        bucket="chat",
        depth=1,
        requests=10.0,
        share=share,
        cached_share=0.5,
        workers=("w0",),
    )
    return msgspec.structs.replace(row, **more)


def test_replicas_prefixes_are_one_tree() -> None:
    first = [prefix("a", 1.0), prefix("b", 0.5, "a", depth=2)]
    second = [prefix("a", 0.8, requests=30.0, cached_share=0.9, workers=("w1",))]

    above, below = merge_prefixes([("chat", first), ("chat", second), ("chat", [])])

    assert (above.key, above.requests, above.workers) == ("a", 40.0, ("w0", "w1"))
    assert above.share == pytest.approx(0.9)
    assert above.cached_share == pytest.approx(0.8)
    assert (below.key, below.parent, below.share) == ("b", "a", 0.25)


def test_a_prefix_whose_parent_no_replica_names_begins_at_the_root() -> None:
    rows = merge_prefixes([("chat", [prefix("b", 0.5, "gone")]), ("code", [prefix("b", 1.0)])])

    assert [row.parent for row in rows] == ["", ""]
    assert len(rows) == 2


def test_a_warning_of_several_replicas_stands_once_with_their_names() -> None:
    said = [("chat-1", ["slow", "odd"]), ("chat-0", ["slow"]), ("code-0", [])]

    assert merge_warnings(said) == ["odd (chat-1)", "slow (chat-0, chat-1)"]
