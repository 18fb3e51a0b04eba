"""What caches saved is one figure: in the log, the metrics, the dashboard and `analyze --live`."""

import asyncio
import json
import random
import statistics
import time
from collections import Counter
from functools import partial
from typing import Any, Final

import httpx
import pytest
from structlog.testing import capture_logs

from kvmesh.app.serve import routing_lines
from kvmesh.app.views.ask import ask_overview
from kvmesh.app.views.top_view import measure
from kvmesh.core.insight.summary_pace import SummaryPace
from kvmesh_lab.analyze.command import read_live
from tests.integration.support.live_router import client_of, mockers, router
from tests.integration.views.test_metrics import families, value

pytestmark = pytest.mark.integration

REQUESTS: Final = 1000
REFUSED: Final = 20
TOLD_FAILURES: Final = ("cut", "unserved", "refused", "crashed", "errors_passed_on")
"""Of the counters those that the dashboard adds up."""

AT_ONCE: Final = 16
TIMED: Final = 120
SLOW: Final = "linear,prefill_base=60,prefill_per_token=0.3,decode_base=80"
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
ASKED, DECLINED = {"include_usage": True}, {"include_usage": False}
KINDS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    (CHAT, {}),
    (CHAT, {"stream": True}),
    (CHAT, {"stream": True, "stream_options": ASKED}),
    (CHAT, {"stream": True, "stream_options": DECLINED}),
    (COMPLETION, {}),
    (COMPLETION, {"stream": True}),
    ("/v1/messages", {"stream": True}),
    ("/v1/responses", {"stream": True}),
)


def body_of(path: str, more: dict[str, Any], text: str) -> dict[str, Any]:
    chat = [{"role": "user", "content": text}]
    name = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    fields = {CHAT: "messages", "/v1/messages": "messages", "/v1/responses": "input"}
    prompt = text if path == COMPLETION else chat
    return {"model": "mock", fields.get(path, "prompt"): prompt, name: 3, **more}


async def send(client: httpx.AsyncClient, number: int, told: Counter[str]) -> None:
    """Send one of the mix, and count what its client is told."""
    rng = random.Random(number)
    path, more = KINDS[number % len(KINDS)]
    text = f"All that is asked of shop {rng.randrange(5)}. " * 30 + f"Question {rng.randrange(300)}"
    answer = await client.post(path, json=body_of(path, more, text))
    assert answer.status_code == 200, answer.text
    usage = '"usage":{' in answer.text.replace(" ", "")
    quiet = more.get("stream_options") is not ASKED and path in {CHAT, COMPLETION}
    assert usage != (quiet and bool(more)), answer.text
    if usage and path in {CHAT, COMPLETION}:
        lines = [one[6:] for one in answer.text.splitlines() if one.startswith("data: {")]
        found = json.loads(lines[-1] if lines else answer.text)["usage"]
        told["prompt"] += found["prompt_tokens"]
        told["cached"] += found["prompt_tokens_details"]["cached_tokens"]
        told["output"] += found["completion_tokens"]
    told["requests"] += 1


async def all_sent(client: httpx.AsyncClient) -> Counter[str]:
    """Send the mix; return what clients that were told usage counted."""
    told: Counter[str] = Counter()
    numbers = iter(range(REQUESTS))

    async def send_some() -> None:
        for number in numbers:
            await send(client, number, told)

    await asyncio.gather(*(send_some() for _ in range(AT_ONCE)))
    return told


async def engines_say(urls: list[str]) -> Counter[str]:
    """Return what the engines counted themselves."""
    names = {
        "prompt": "vllm:prompt_tokens_total",
        "cached": "vllm:prompt_tokens_cached_total",
        "output": "vllm:generation_tokens_total",
    }
    found: Counter[str] = Counter()
    async with httpx.AsyncClient(timeout=30) as client:
        for url in urls:
            text = (await client.get(f"{url}/metrics")).text
            for name, metric in names.items():
                lines = [one for one in text.splitlines() if one.startswith(metric + "{")]
                found[name] += int(sum(float(one.rpartition(" ")[2]) for one in lines))
    return found


async def counted_usage(client: httpx.AsyncClient) -> dict[str, Any]:
    """Return the sums of /v1/usage, once it has counted all requests, and looked at twice."""
    async with asyncio.timeout(10):
        while True:
            page = (await client.get("/v1/usage?by=model&since=24h")).json()
            if page["total"]["requests"] >= REQUESTS:
                break
            await asyncio.sleep(0.2)
    rows = [*page["rows"], page["others"]]
    total: dict[str, Any] = page["total"]
    for name in ("requests", "prompt_tokens", "cached_tokens", "output_tokens"):
        assert sum(one[name] for one in rows) == total[name]
    return total


async def test_every_figure_agrees_with_what_engines_and_clients_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_once = partial(SummaryPace, settle_s=0.0, every_s=0.0)
    monkeypatch.setattr(routing_lines, "SummaryPace", at_once)
    monkeypatch.setattr(routing_lines, "LOOK_S", 0.1)
    async with mockers(2) as engines:
        urls = [one.url for one in engines]
        with capture_logs() as logs:
            async with client_of(router(urls, parity_sample=0)) as client:
                told = await all_sent(client)
                truth = await engines_say(urls)
                metrics = families((await client.get("/metrics")).text)
                overview = await ask_overview(str(client.base_url))
                await asyncio.sleep(0.3)
                usage = await counted_usage(client)
                for number in range(REFUSED):
                    body = body_of(CHAT, {}, f"refused {number}")
                    pinned = {"x-kvmesh-worker-id": "nobody"}
                    assert (await client.post(CHAT, json=body, headers=pinned)).is_error
                await asyncio.sleep(1.2)  # rates are counted once a second
                after = await ask_overview(str(client.base_url))

    assert (usage["requests"], usage["errors"]) == (REQUESTS, 0)
    within = partial(pytest.approx, rel=0.01)
    share = truth["cached"] / truth["prompt"]
    assert share > 0.3
    assert told["requests"] == REQUESTS
    assert told["cached"] / told["prompt"] == pytest.approx(share, abs=0.1)
    saved = {"all": "prompt", "saved": "cached", "reported": "prompt", "cached": "cached"}
    for kind, name in saved.items():
        found = value(metrics, "kvmesh_prompt_tokens_total", kind=kind)
        assert found == within(truth[name]), kind
    for name, found in truth.items():
        assert usage[f"{name}_tokens"] == within(found), name
    assert usage["engine_ms"] > 0
    assert value(metrics, "kvmesh_output_tokens_total") == within(truth["output"])
    assert value(metrics, "kvmesh_saved_seconds_total") > 0.0
    summaries = [one for one in logs if one["event"] == routing_lines.SUMMARY]
    logged = {"prompt_tokens": "prompt", "saved_tokens": "cached", "hit_tokens": "cached"}
    for field, name in logged.items():
        assert sum(one[field] for one in summaries) == within(truth[name]), field
    counters = overview.counters
    assert counters["prompt_tokens"] == within(truth["prompt"])
    assert counters["saved_tokens"] == within(truth["cached"])
    assert counters["saved_ms"] > 0
    live = read_live(overview).traffic
    assert live.saved_tokens == within(truth["cached"])
    assert live.saved == within(share)
    assert live.predicted_alone == 0.0
    assert measure(overview.seconds, int(overview.now) + 1).hit_share == within(share)
    # The other tiles: requests, failed ones, tokens written, what is under way.
    assert counters["requests"] == sum(one.requests for one in overview.seconds) == REQUESTS
    assert sum(counters.get(name, 0) for name in TOLD_FAILURES) == 0
    assert sum(after.counters.get(name, 0) for name in TOLD_FAILURES) == REFUSED
    assert after.traffic is not None
    errors = sum(after.traffic.errors_per_s[name] for name in ("4xx", "5xx", "429", "cut"))
    assert 0.0 < errors < after.traffic.requests_per_s  # of the last seconds
    assert [one.usable for one in after.workers] == [True, True]
    assert sum(one.active_requests + one.waiting_requests for one in after.workers) == 0


async def first_token_s(client: httpx.AsyncClient, number: int) -> float:
    """Send a stream; return how long its client waited for the first token."""
    text = f"{number} asks " + "much " * (40 * (number % 4))
    began_s = time.monotonic()
    body = body_of(CHAT, {"stream": True}, text)
    async with client.stream("POST", CHAT, json=body) as answer:
        assert answer.status_code == 200
        first = 0.0
        async for line in answer.aiter_lines():
            if not first and '"content":' in line.replace('"content":""', ""):
                first = time.monotonic() - began_s
    return first


async def test_times_to_the_first_token_are_those_that_clients_measure() -> None:
    """A tile's times are right to 2.5 %, and lie within those of clients, which begin before the
    decision and end behind the first token: they wait for a connection, and for the event loop that
    all share here. That made them 10 to 23 % later on two processors with a load of thirty. A
    tile that took the next token for the first would be 80 ms later, and above the clients'.
    """
    async with (
        mockers(2, timing_profile=SLOW) as engines,
        client_of(router([one.url for one in engines], parity_sample=0)) as client,
    ):
        numbers, found = iter(range(TIMED)), list[float]()

        async def send_some() -> None:
            for number in numbers:
                found.append(await first_token_s(client, number))

        await asyncio.gather(*(send_some() for _ in range(4)))
        overview = await ask_overview(str(client.base_url))

    tile = measure(overview.seconds, int(overview.now) + 1)
    theirs = statistics.quantiles(found, n=10)
    assert sum(sum(one.ttft.values()) for one in overview.seconds) == TIMED
    for ours_ms, client_s in ((tile.ttft_p50_ms, theirs[4]), (tile.ttft_p90_ms, theirs[8])):
        assert ours_ms is not None
        assert ours_ms > 60.0
        assert 0.97 * ours_ms / 1000.0 <= client_s <= 1.25 * ours_ms / 1000.0 + 0.05
