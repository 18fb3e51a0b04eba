"""Replay against a real server on a real socket."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from kvmesh.app.process.running import Stop
from kvmesh.errors import ConfigError, TransportError
from kvmesh_lab.replay.command import ReplayOptions, replay, run_replay
from tests.integration.support.replay_endpoint import ReplayEndpoint, serve
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"


@pytest.fixture
async def endpoint() -> AsyncIterator[ReplayEndpoint]:
    server = ReplayEndpoint()
    async with serve(server):
        yield server


def options(server: ReplayEndpoint, **changes: Any) -> ReplayOptions:
    plain = ReplayOptions(
        trace=TRACES / "mooncake_conversation_80_b512.jsonl",
        url=server.url,
        requests=40,
        speedup=60,
        max_input_tokens=2048,
        output_tokens=5,
        timeout_s=60,
        settle_s=0,
        progress=False,
    )
    return dataclasses.replace(plain, **changes)


async def test_a_slice_is_sent_and_measured(endpoint: ReplayEndpoint) -> None:
    report = await run_replay(options(endpoint))

    (run,) = report.runs
    summary = run.summary
    assert (summary.requests, summary.succeeded, summary.errors) == (40, 40, {})
    assert summary.output_tokens == sum(int(str(b["max_tokens"])) for _, _, b in endpoint.seen)
    assert summary.ttft_ms is not None
    assert summary.ttft_ms.p50 > 0
    assert summary.itl_ms is not None
    assert summary.itl_ms.count == summary.output_tokens - 40
    assert summary.itl_ms.p90 > 0.9
    assert [share.name for share in summary.workers] == ["w0", "w1", "w2", "w3"]
    assert [share.name for share in summary.routers] == ["r0"]
    assert 0 < summary.hit_rate <= report.infinite_hit_rate
    assert summary.overlap_blocks is not None
    assert {headers["content-type"] for _, headers, _ in endpoint.seen} == {"application/json"}
    assert report.facts["model"] == "mock"


def write_families(path: Path) -> Path:
    """Write 35 requests of 7 families: one after the other, each 4 shared blocks and its own."""
    lines = [
        {
            "timestamp": 20 * number,
            "input_length": 5 * 64,
            "output_length": 4,
            "hash_ids": [*(10 * (number % 7) + depth for depth in range(4)), 1000 + number],
        }
        for number in range(35)
    ]
    path.write_bytes(b"\n".join(msgspec.json.encode(line) for line in lines))
    return path


async def test_comparing_runs_the_slice_under_each_mode_with_other_prompts(
    endpoint: ReplayEndpoint, tmp_path: Path
) -> None:
    trace = write_families(tmp_path / "families_b64.jsonl")
    modes = ("round-robin", "kv")

    report = await run_replay(
        options(endpoint, trace=trace, concurrency=1, compare=modes, reset_engine=(endpoint.url,))
    )

    first, second = report.runs
    assert (first.name, second.name) == modes
    assert first.summary.hit_rate == pytest.approx(7 * 4 / (35 * 5))
    assert second.summary.hit_rate == pytest.approx(28 * 4 / (35 * 5))
    assert endpoint.resets == 2
    sent = [headers["x-kvmesh-router-mode"] for _, headers, _ in endpoint.seen]
    assert sent == ["round-robin"] * 35 + ["kv"] * 35
    assert len({str(body["messages"]) for _, _, body in endpoint.seen}) == 70


async def test_formulas_and_their_numbers_are_asked_for_by_header(endpoint: ReplayEndpoint) -> None:
    policies = ("kv:lmetric", "kv:prefill-decode:overlap_score_weight=2:temperature=0.1")

    await run_replay(options(endpoint, requests=1, compare=policies))

    names = ("router-mode", "cost", "overlap-score-weight", "temperature")
    sent = [[headers.get(f"x-kvmesh-{name}") for name in names] for _, headers, _ in endpoint.seen]
    assert sent == [["kv", "lmetric", None, None], ["kv", "prefill-decode", "2", "0.1"]]


async def test_kv_reaches_the_infinite_cache_where_nothing_is_evicted(
    endpoint: ReplayEndpoint,
) -> None:
    report = await run_replay(options(endpoint, compare=("kv",), concurrency=1))

    assert report.runs[0].summary.hit_rate == pytest.approx(report.infinite_hit_rate, abs=0.01)


async def test_the_same_seed_sends_the_same_prompts_again(endpoint: ReplayEndpoint) -> None:
    for seed in (1, 1, 2):
        await run_replay(options(endpoint, requests=5, seed=seed, concurrency=1))

    prompts = [str(body["messages"]) for _, _, body in endpoint.seen]
    assert prompts[:5] == prompts[5:10]
    assert not set(prompts[:5]) & set(prompts[10:])


async def test_a_closed_loop_never_has_more_open_than_asked(endpoint: ReplayEndpoint) -> None:
    report = await run_replay(options(endpoint, concurrency=3))

    assert report.runs[0].summary.succeeded == 40
    assert endpoint.most_open == 3


async def test_sessions_wait_for_their_turns(endpoint: ReplayEndpoint) -> None:
    trace = TRACES / "sessions_b64.jsonl"

    report = await run_replay(
        options(
            endpoint, trace=trace, requests=None, speedup=1, bucket=("x", "y"), bucket_by="session"
        )
    )

    outcomes = sorted(report.runs[0].outcomes, key=lambda outcome: outcome.index)
    ended = [outcome.sent_ms + outcome.latency_ms for outcome in outcomes]
    assert outcomes[2].sent_ms >= ended[0] + 28
    assert outcomes[5].sent_ms >= ended[2] + 28
    assert {(o.session, o.bucket) for o in outcomes} == {("a", "x"), ("b", "y"), ("c", "x")}


async def test_completions_take_token_ids(endpoint: ReplayEndpoint) -> None:
    report = await run_replay(
        options(endpoint, endpoint="completions", prompt_unit="token-ids", requests=3)
    )

    assert report.runs[0].summary.succeeded == 3
    what, _, body = endpoint.seen[0]
    assert what == "POST /v1/completions"
    assert isinstance(body["prompt"], list)


async def test_failures_are_counted_by_kind_and_the_rest_goes_on(
    endpoint: ReplayEndpoint,
) -> None:
    kinds = ("503", "json", "cut", "stream error", "no end", "stall", "no usage")
    endpoint.faults = dict(enumerate(kinds))

    report = await run_replay(options(endpoint, requests=12, concurrency=1, timeout_s=4))

    summary = report.runs[0].summary
    assert summary.errors == {
        "http 503": 1,
        "not a stream": 1,
        "truncated": 2,
        "stream error": 1,
        "timeout": 1,
    }
    assert summary.succeeded == 6
    outcomes = {outcome.error: outcome for outcome in report.runs[0].outcomes}
    assert outcomes["http 503"].detail == "all workers are busy"
    assert outcomes["http 503"].status == 503
    assert "application/json" in outcomes["not a stream"].detail
    assert "engine died" in outcomes["stream error"].detail
    assert outcomes["timeout"].latency_ms >= 3990


async def test_a_request_without_usage_counts_its_chunks(endpoint: ReplayEndpoint) -> None:
    endpoint.faults = {0: "no usage"}

    report = await run_replay(options(endpoint, requests=1))

    outcome = report.runs[0].outcomes[0]
    assert (outcome.output_tokens, outcome.prompt_tokens, outcome.error) == (5, 0, "")


async def test_stopping_gives_up_open_requests_and_reports_the_rest(
    endpoint: ReplayEndpoint,
) -> None:
    endpoint.faults = dict.fromkeys(range(10, 40), "stall")
    stop = Stop()
    running = asyncio.create_task(run_replay(options(endpoint, compare=("a", "b")), stop=stop))
    await until(lambda: len(endpoint.seen) == 40)

    stop.request()
    report = await running

    (run,) = report.runs
    assert run.name == "a"
    assert run.summary.requests <= 10
    assert "interrupted" in report.facts
    await until(lambda: endpoint.open == 0)


async def test_a_replay_stopped_before_it_began_reports_nothing_sent(
    endpoint: ReplayEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = Stop()
    stop.request()

    code = await replay(options(endpoint, compare=("a", "b")), stop)

    assert code == 1
    assert "interrupted" in capsys.readouterr().out


async def test_an_answer_that_is_no_model_list_is_refused(endpoint: ReplayEndpoint) -> None:
    endpoint.models_body = b"<html>"

    with pytest.raises(TransportError, match="not a model list"):
        await run_replay(options(endpoint))


async def test_the_first_listed_model_is_asked_for_or_the_one_named(
    endpoint: ReplayEndpoint,
) -> None:
    endpoint.models = ["first", "second"]

    await run_replay(options(endpoint, requests=1))
    await run_replay(options(endpoint, requests=1, model="mine", api_key="secret"))

    assert [body["model"] for _, _, body in endpoint.seen] == ["first", "mine"]
    assert endpoint.seen[1][1]["authorization"] == "Bearer secret"


async def test_an_endpoint_without_models_is_refused(endpoint: ReplayEndpoint) -> None:
    endpoint.models = []

    with pytest.raises(TransportError, match="--model"):
        await run_replay(options(endpoint))


async def test_an_endpoint_that_is_not_there_is_named(unused_tcp_port: int) -> None:
    nobody = ReplayEndpoint()
    nobody.url = f"http://127.0.0.1:{unused_tcp_port}"

    with pytest.raises(TransportError, match=f":{unused_tcp_port}/v1/models: refused"):
        await run_replay(options(nobody))
    report = await run_replay(options(nobody, model="m", requests=3))

    assert report.runs[0].summary.errors == {"refused": 3}


async def test_an_engine_that_cannot_be_reset_is_named_with_the_remedy(
    endpoint: ReplayEndpoint,
) -> None:
    with pytest.raises(TransportError, match=r"http 404.*VLLM_SERVER_DEV_MODE"):
        await run_replay(options(endpoint, reset_engine=(f"{endpoint.url}/engine",)))


async def test_bad_options_send_nothing(endpoint: ReplayEndpoint) -> None:
    with pytest.raises(ConfigError, match="--speedup"):
        await run_replay(options(endpoint, speedup=0.0))

    assert endpoint.seen == []


async def test_the_command_prints_writes_and_tells_success(
    endpoint: ReplayEndpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = options(endpoint, requests=8, json=tmp_path / "r.json", csv=tmp_path / "r.csv")

    code = await replay(wanted)
    endpoint.faults = dict.fromkeys(range(8, 16), "503")
    failed = await replay(options(endpoint, requests=8))

    assert (code, failed) == (0, 1)
    text = capsys.readouterr().out
    for word in ("hit rate", "TTFT p90", "ITL p50", "w3", "http 503"):
        assert word in text
    assert len((tmp_path / "r.csv").read_text(encoding="utf-8").splitlines()) == 9


async def test_progress_is_shown_on_a_terminal(endpoint: ReplayEndpoint) -> None:
    console = Console(file=StringIO(), force_terminal=True, width=160)

    await run_replay(options(endpoint, requests=8, progress=True), console=console)

    assert isinstance(console.file, StringIO)
    assert "8/8" in console.file.getvalue()


async def test_hundreds_of_streams_at_once_are_all_served() -> None:
    endpoint = ReplayEndpoint(token_s=0.1)
    async with serve(endpoint):
        report = await run_replay(
            options(endpoint, requests=80, speedup=100_000, output_tokens=20, max_input_tokens=64)
        )

    summary = report.runs[0].summary
    assert summary.succeeded == 80
    assert endpoint.most_open > 40
