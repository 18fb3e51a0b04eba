import msgspec
import pytest

from kvmesh.app.views.decision_view import DecisionRow
from kvmesh.app.views.overview import Overview, PrefixRow
from kvmesh.app.views.program_rows import ProgramRow
from kvmesh.app.views.tenant_view import TenantDetail, detail_for, overview_for, rows_for
from kvmesh.core.admission.access import Viewer
from tests.unit.app.views.test_top_view import decision, overview, second, worker

ANN, APART = Viewer("ann"), Viewer("ann", apart=True)

TOLD = {
    *("key", "request_id", "router", "bucket", "worker", "policy", "decided_at", "state"),
    *("status", "attempts", "failures", "prompt_tokens", "total_blocks", "considered", "weighed"),
    *("held_ms", "ttft_ms", "duration_ms", "reported_tokens", "output_tokens", "tenant"),
    "estimated",
    "unforeseen",
}
ORACLES = {"why", "overlap_blocks", "round_robin_blocks", "score", "cached_tokens"}


def rows() -> list[DecisionRow]:
    names = ("ann", "ben", "", "ann")
    return [
        msgspec.structs.replace(decision(number), tenant=name, round_robin_blocks=3)
        for number, name in enumerate(names)
    ]


def test_each_field_of_a_decision_is_known_to_be_told_or_not() -> None:
    assert set(DecisionRow.__struct_fields__) == TOLD | ORACLES


def test_a_tenant_sees_its_own_rows_and_of_shared_blocks_nothing() -> None:
    own, apart = rows_for(rows(), ANN), rows_for(rows(), APART)

    assert [row.key for row in own] == [row.key for row in apart] == ["0", "3"]
    assert apart == [rows()[0], rows()[3]]
    assert {name for name in ORACLES if getattr(own[0], name)} == set()
    for name in TOLD:
        assert getattr(own[0], name) == getattr(rows()[0], name)


@pytest.mark.parametrize("viewer", [ANN, APART])
def test_a_tenant_is_told_who_failed_and_not_where(viewer: Viewer) -> None:
    why = "w0: http://10.1.2.3:8000: [Errno 111] Connection refused"
    row = msgspec.structs.replace(rows()[0], failures=(why, "w1: answered 500"))

    (seen,) = rows_for([row], viewer)
    reported = detail_for(TenantDetail("r", "note", row), viewer)

    assert seen.failures == ("w0 failed", "w1 failed")
    assert reported is not None
    assert b"10.1.2.3" not in reported
    assert b"10.1.2.3" in (detail_for(TenantDetail("r", "note", row), None) or b"")


@pytest.mark.parametrize("viewer", [ANN, APART])
def test_an_overview_counts_and_lists_nobody_elses(viewer: Viewer) -> None:
    prefix = PrefixRow("a", "", "chat", 3, 5.0, 0.5, 0.5, ("w0",))
    whole = overview(
        decisions=rows(),
        prefixes=[prefix],
        counters={"requests": 5},
        seconds=[second(1, requests=5)],
        warnings=["w"],
        workers=[worker(usable=False, why_not="ann's request hangs", url="http://10.0.0.1")],
    )

    seen = overview_for(whole, viewer, 1)

    assert [row.key for row in seen.decisions] == ["3"]
    empty = Overview(
        "router", "chat-0", "1", 0, seen.now, True, "", seen.policy, 16, [], [], [], {}, [], []
    )
    blank = msgspec.structs.replace(seen, decisions=[], workers=[], buckets=[])
    assert blank == empty
    (row,) = seen.workers
    assert (row.worker, row.url, row.why_not) == ("w0", "", "not usable now")
    assert [row.active_requests, row.cached_blocks, row.ttft_ms, row.figures] == [0, 0, None, {}]
    (bucket,) = seen.buckets
    assert (bucket.workers, bucket.active_requests, bucket.used_blocks) == (1, 0, 0)


def test_all_about_a_request_is_its_tenants() -> None:
    detail = TenantDetail("r", "note", rows()[0])

    assert detail_for(detail, None) == detail_for(detail, APART) == msgspec.json.encode(detail)
    assert detail_for(detail, Viewer("ben", apart=True)) is None
    reported = msgspec.json.decode(detail_for(detail, ANN) or b"", type=TenantDetail)
    assert reported.outcome.why == ""
    assert reported.note != "note"


def test_a_tenant_sees_its_own_programs_and_not_what_others_do_to_them() -> None:
    own = ProgramRow(
        "a1", "chat", "waiting", tenant="ann", tokens=9, reserved_tokens=9, workers=("w0",), why="w"
    )
    programs = [own, msgspec.structs.replace(own, program="b1", tenant="ben")]

    seen = overview_for(overview(programs=programs), ANN, 1).programs
    apart = overview_for(overview(programs=programs), APART, 1).programs

    assert apart == [own]
    assert seen == [msgspec.structs.replace(own, workers=(), reserved_tokens=0, why="")]
