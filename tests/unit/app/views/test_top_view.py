import io

import msgspec
import pytest
from rich.console import Console

from kvmesh.app.views.decision_view import DecisionRow
from kvmesh.app.views.figure import Format
from kvmesh.app.views.overview import Overview, ReplicaRow, WorkerRow, sum_buckets
from kvmesh.app.views.policy_view import ChangeRow, PolicyRow
from kvmesh.app.views.program_rows import ProgramRow
from kvmesh.app.views.top_view import WINDOW_S, draw, figure, gauge, measure, sparkline
from kvmesh.core.insight.rollout_state import Step
from kvmesh.core.insight.traffic import TrafficSecond

NOW = 1_000_000


def replica(**more: object) -> ReplicaRow:
    row = ReplicaRow(
        replica="chat-0", bucket="chat", url="", ready=True, reason="", draining=False,
        kv_events=True, applied_sequence=12_345, agreement="agrees",
    )  # fmt: skip
    return msgspec.structs.replace(row, **more)


def worker(**more: object) -> WorkerRow:
    row = WorkerRow(
        worker="w0", bucket="chat", url="", models=(), trust="exact", usable=True, why_not="",
        used_blocks=50, total_blocks=100, cached_blocks=4_321, running_requests=1,
        waiting_requests=0, active_requests=2, active_blocks=3, prefill_tokens=700,
        ms_per_token=0.05, ttft_ms=120.0,
    )  # fmt: skip
    return msgspec.structs.replace(row, **more)


def decision(number: int) -> DecisionRow:
    return DecisionRow(
        key=str(number), request_id=f"request-{number}", router="chat-0", bucket="chat",
        worker="w0", policy="predicted-time", why="holds 8 of 9 blocks", decided_at=NOW + number,
        state="finished", status=200, attempts=1, failures=(), prompt_tokens=144,
        overlap_blocks=8, total_blocks=9, round_robin_blocks=0, score=1.0, considered=1, weighed=1,
        held_ms=None, ttft_ms=12.0, duration_ms=40.0, reported_tokens=144, cached_tokens=128,
        output_tokens=4,
    )  # fmt: skip


def overview(**more: object) -> Overview:
    replicas, workers = [replica()], [worker()]
    whole = Overview(
        role="router", name="chat-0", version="1", started=0, now=float(NOW), ready=True,
        reason="", policy="predicted-time", block_size=16,
        buckets=sum_buckets(replicas, workers), replicas=replicas, workers=workers, counters={},
        seconds=[], decisions=[decision(number) for number in range(3)],
    )  # fmt: skip
    return msgspec.structs.replace(whole, **more)


def drawn(whole: Overview, rows: int = 10, width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(draw(whole, whole.seconds, rows=rows))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def second(at: int, **counts: int) -> TrafficSecond:
    return msgspec.structs.replace(TrafficSecond(at), ttft={}, round_robin_ttft={}, **counts)


def test_a_change_of_policy_has_a_line_with_where_it_stands() -> None:
    step = Step(1.0, "chat-0", 0.25, "asked for")
    change = ChangeRow(1.0, "chat-0", "kv:lmetric", "kv:preble", "returned", (step,))
    trial = PolicyRow(
        "chat", "kv:preble", "kv:lmetric", 0.5, 2, "candidate", "open: 3 of 200", history=(change,)
    )
    over = PolicyRow("code", "kv:preble", history=(change,))

    shown = drawn(overview(policies=[trial, over, PolicyRow("none", "kv:preble", refused="x")]))

    assert "policy of chat  kv:lmetric on trial: window 2 (candidate), open: 3 of 200" in shown
    assert "policy of code  kv:lmetric returned: asked for" in shown
    assert "policy of none" not in shown


def test_a_bucket_says_how_full_it_is_and_what_autoscaling_would_do() -> None:
    reported = {"saturation": 1.25, "wanted_workers": 3.2}
    replicas = [replica(figures=reported), replica(replica="code-0", bucket="code")]
    workers = [
        worker(figures={"drain_order": 2.0}),
        worker(worker="w1", figures={"drain_order": 1.0}),
        worker(worker="c0", bucket="code"),
    ]
    buckets = sum_buckets(replicas, workers)

    shown = drawn(overview(buckets=buckets, replicas=replicas, workers=workers))

    assert "chat is 125.0% full, wants 4 workers, has 2; w1 would leave first" in shown
    assert "code is" not in shown


def test_rates_are_over_the_whole_window_and_leave_out_what_is_older() -> None:
    old = second(NOW - WINDOW_S - 1, requests=1000)
    running = second(NOW, requests=1000)
    seconds = [old, second(NOW - 2, requests=40), second(NOW - 1, requests=20), running]

    present = measure(seconds, NOW)

    assert present.requests_per_s == 1.0
    assert present.per_second[-2:] == (40, 20)
    assert len(present.per_second) == WINDOW_S


@pytest.mark.parametrize(
    ("shadowed", "text"),
    [(100, "(round robin 50.0%)"), (40, "(round robin 50.0%, of a sample of 40.0%)")],
)
def test_a_share_that_is_of_a_sample_says_so(shadowed: int, text: str) -> None:
    counts = {"round_robin_tokens": shadowed // 2, "shadowed_tokens": shadowed}
    one = second(NOW - 1, prompt_tokens=100, **counts)

    assert text in drawn(overview(seconds=[one]))


@pytest.mark.parametrize(
    ("values", "line"), [([], ""), ([0, 0], "  "), ([0, 1, 8], " ▁█"), ([3], "█")]
)
def test_a_sparkline_is_as_high_as_its_values(values: list[int], line: str) -> None:
    assert sparkline(values) == line


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 0, "-"), (50, 100, "█████░░░░░  50%"), (300, 100, "██████████ 100%")],
)
def test_a_gauge_says_how_full(part: int, whole: int, text: str) -> None:
    assert gauge(part, whole).plain == text


@pytest.mark.parametrize(
    ("style", "value", "text"),
    [
        ("count", 12_345, "12,345"),
        ("percent", 0.125, "12.5%"),
        ("ms", 1250.0, "1,250 ms"),
        ("s", 1.25, "1,250 ms"),
        ("ms_per_token", 0.05, "0.050"),
        ("count", None, "-"),
    ],
)
def test_a_figure_is_written_by_its_format(style: Format, value: float | None, text: str) -> None:
    assert figure(style, value) == text


def test_only_the_newest_requests_are_listed() -> None:
    text = drawn(overview(), rows=2)

    assert "request-2" in text
    assert "request-0" not in text
    assert "newest first" not in drawn(overview(decisions=[]))


def test_trouble_is_said_in_words() -> None:
    whole = overview(
        ready=False,
        reason="catching up: 500 behind",
        replicas=[replica(ready=False, reason="draining", kv_events=False)],
        workers=[worker(trust="degraded", why_not="no heartbeat for 4.0 s", ttft_ms=None)],
    )

    text = drawn(whole)

    for part in ("catching up: 500 behind", "draining", "degraded", "no heartbeat for 4.0 s"):
        assert part in text


def test_failing_workers_are_told_from_those_that_drain() -> None:
    assert "failed" not in drawn(overview()).split("workers", 1)[1].split("requests, newest")[0]

    why = "ejected, 3 of 20 failed (500), asked again in 0.9 s"
    failing = worker(worker="w1", usable=False, why_not=why, stage="ejected", failures=3)
    rows = [worker(), msgspec.structs.replace(failing, attempts=20)]
    text = drawn(overview(workers=rows))

    assert "3/20" in text
    assert why in text


def test_warnings_stand_on_top_and_many_are_counted() -> None:
    few = drawn(overview(warnings=["token ids differ"]))
    many = drawn(overview(warnings=[f"warning {number}" for number in range(9)]))

    assert "! token ids differ" in few
    assert "! warning 3" in many
    assert "! warning 4" not in many
    assert "! and 5 more, see /ready" in many


def test_eighty_columns_are_enough_for_every_name_and_figure() -> None:
    rows = [worker(worker=f"worker-{number}", why_not="") for number in range(12)]
    console = Console(file=io.StringIO(), width=80, color_system=None)

    console.print(draw(overview(workers=rows), [], rows=3))

    file = console.file
    assert isinstance(file, io.StringIO)
    text = file.getvalue()
    for part in ("worker-11", "requests", "waiting", "prefill", "ms/token", "4,321", "12,345"):
        assert part in text, text


def test_a_request_is_named_as_explain_takes_it_however_narrow_the_terminal() -> None:
    uuid, long = "8f14e45f-ceea-467f-a8b2-0123456789ab", "x" * 40 + "-the-end"
    rows = [
        msgspec.structs.replace(decision(number), request_id=name)
        for number, name in enumerate((uuid, long))
    ]

    text = drawn(overview(decisions=rows), width=80)

    assert uuid in text
    assert "x-the-end" in text
    assert long not in text


def test_programs_have_a_table_only_where_there_are_some() -> None:
    waiting = ProgramRow("0a1b2c", "chat", "waiting", client="codex", tokens=104_000, since_s=7.0)
    running = ProgramRow(
        "3d4e5f", "chat", "running", turns=39, workers=("w0", "w1"), tokens=10, reserved_tokens=5
    )
    many = [msgspec.structs.replace(running, program=f"p{number}") for number in range(20)]

    text = drawn(overview(programs=[waiting, running, *many]))

    assert "programs" not in drawn(overview())
    for part in ("0a1b2c", "codex", "waiting 7 s", "nowhere", "104,000", "w0, w1", "39", " 50%"):
        assert part in text
    assert "p3" in text
    assert "p4" not in text, "the first few"
