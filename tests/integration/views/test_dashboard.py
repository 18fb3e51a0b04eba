"""The dashboard's page and what feeds it, over HTTP, against routers with tiny engines."""

import asyncio
import contextlib
import io
import re
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from kvmesh.app.views.explain_command import ExplainOptions, fetch_answer, print_answer
from kvmesh.errors import TransportError
from kvmesh.settings.requests import DecisionSettings
from tests.integration.support.live_router import (
    chat,
    client_of,
    events,
    free_port,
    meta_router,
    router,
)
from tests.integration.support.replay_endpoint import ReplayEndpoint, serve
from tests.integration.support.waiting import seen

pytestmark = pytest.mark.integration

PROMPT = "All that everybody asks about, again and again. " * 40
SCRIPTS = (
    *("/dashboard.js", "/charts.js", "/detail.js", "/figures.js", "/parts.js", "/policies.js"),
    "/traffic.js",
)
FILES = ("", "/dashboard.css", "/icon.svg", *SCRIPTS)


@pytest.fixture
async def engines() -> AsyncIterator[list[ReplayEndpoint]]:
    made = [ReplayEndpoint(workers=1) for _ in range(2)]
    async with contextlib.AsyncExitStack() as stack:
        for engine in made:
            await stack.enter_async_context(serve(engine))
        yield made


@pytest.fixture
async def alone(engines: list[ReplayEndpoint]) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(router([engine.url for engine in engines])) as client:
        yield client


async def test_the_page_is_small_whole_and_from_nowhere_else(alone: httpx.AsyncClient) -> None:
    answers = [await alone.get(f"/dashboard{name}") for name in FILES]
    root = await alone.get("/")

    assert [answer.status_code for answer in answers] == [200] * len(FILES)
    assert root.content == answers[0].content
    assert sum(len(answer.content) for answer in answers) < 63_000
    for answer in answers:
        assert answer.headers["content-security-policy"].startswith("default-src 'self'")
        assert answer.headers["x-content-type-options"] == "nosniff"
        foreign = set(re.findall(r"https?://[\w.]+", answer.text)) - {"http://www.w3.org"}
        assert not foreign
    assert not re.search(r"<script>|<style|\sstyle=|\son\w+=", root.text)
    linked = set(re.findall(r'(?:href|src)="(dashboard/[^"]+)"', root.text))
    assert {f"/{name}" for name in linked} <= {f"/dashboard{name}" for name in FILES}


async def test_a_browser_keeps_what_has_not_changed(alone: httpx.AsyncClient) -> None:
    tag = (await alone.get("/dashboard/dashboard.js")).headers["etag"]

    again = await alone.get("/dashboard/dashboard.js", headers={"if-none-match": tag})
    other = await alone.get("/dashboard/dashboard.js", headers={"if-none-match": '"old"'})

    assert (again.status_code, again.content) == (304, b"")
    assert other.status_code == 200


async def test_a_decision_is_found_with_every_workers_terms(alone: httpx.AsyncClient) -> None:
    await chat(alone, PROMPT, "first")
    await chat(alone, PROMPT, "odd/id?<b>&#1")

    answer = (await alone.get("/v1/decisions/odd%2Fid%3F%3Cb%3E%26%231")).json()

    outcome, decision = answer["outcome"], answer["decision"]
    assert answer["request_id"] == outcome["request_id"] == "odd/id?<b>&#1"
    assert outcome["state"] == "finished"
    assert outcome["status"] == 200
    assert outcome["overlap_blocks"] > 100
    assert outcome["cached_tokens"] > 1600
    assert outcome["ttft_ms"] > 0
    assert outcome["duration_ms"] > outcome["ttft_ms"]
    assert outcome["output_tokens"] == 4
    assert {one["worker"] for one in decision["candidates"]} == {"w0", "w1"}
    assert decision["candidates"][0]["worker"] == decision["worker"]
    assert decision["formula"].startswith("predicted-time = (wait_ms + ")
    assert "of 2 workers" in decision["why"]
    for one in decision["candidates"]:
        assert one["formula"].startswith(f"Formula for {one['worker']}: ")
    assert "every considered worker" in answer["note"]


async def test_round_robin_is_what_turns_would_have_found(alone: httpx.AsyncClient) -> None:
    for number in range(4):
        await chat(alone, PROMPT, f"turn-{number}")

    overview = (await alone.get("/v1/overview")).json()

    rows = sorted(overview["decisions"], key=lambda row: str(row["request_id"]))
    assert [row["round_robin_blocks"] > 100 for row in rows] == [False, False, True, True]
    total = sum(second["round_robin_tokens"] for second in overview["seconds"])
    assert total > 2 * 1600
    assert sum(second["cached_tokens"] for second in overview["seconds"]) > 3 * 1600
    assert sum(sum(second["ttft"].values()) for second in overview["seconds"]) == 4


async def test_a_retry_tells_what_failed_before(
    alone: httpx.AsyncClient, engines: list[ReplayEndpoint]
) -> None:
    engines[1].faults = {0: "503"}  # the turns of this router's name begin there

    await chat(alone, PROMPT, "retried", router_mode="round-robin")

    answer = (await alone.get("/v1/decisions/retried")).json()
    outcome = answer["outcome"]
    assert (outcome["worker"], outcome["attempts"], outcome["status"]) == ("w0", 2, 200)
    assert outcome["failures"] == [f"w1: {engines[1].url}: answered 503"]
    assert answer["decision"]["why"] == "round-robin: caches did not count"


async def test_beyond_the_rate_only_the_chosen_worker_is_kept(
    engines: list[ReplayEndpoint],
) -> None:
    async with (
        client_of(
            router([one.url for one in engines], decision=DecisionSettings(explain_per_s=0))
        ) as client,
    ):
        await chat(client, PROMPT, "thin")
        answer = (await client.get("/v1/decisions/thin")).json()

    assert len(answer["decision"]["candidates"]) == 1
    assert answer["decision"]["considered"] == 2
    assert "considered 2 workers, kept the terms of 1" in answer["note"]


async def test_lists_are_newest_first_and_bad_questions_are_told(alone: httpx.AsyncClient) -> None:
    for number in range(3):
        await chat(alone, PROMPT, f"r{number}")

    listed = (await alone.get("/v1/decisions?limit=2")).json()["decisions"]
    bad = await alone.get("/v1/decisions?limit=many")
    unknown = await alone.get("/v1/decisions/nobody")
    posted = await alone.post("/v1/decisions/r0")

    assert [one["request_id"] for one in listed] == ["r2", "r1"]
    assert bad.status_code == 400
    assert "limit='many'" in bad.json()["error"]["message"]
    assert unknown.status_code == 404
    assert "nobody" in unknown.json()["error"]["message"]
    assert posted.status_code == 405


async def test_events_begin_with_everything_and_follow_a_request(alone: httpx.AsyncClient) -> None:
    await chat(alone, PROMPT, "before")
    seen: list[tuple[str, Any]] = []
    async with contextlib.aclosing(events(alone)) as stream:
        async for name, data in stream:
            seen.append((name, data))
            if len(seen) == 1:
                await chat(alone, PROMPT, "while")
            rows = [row for kind, rows in seen if kind == "decisions" for row in rows]
            done = [r for r in rows if r["request_id"] == "while" and r["state"] == "finished"]
            if done and "overview" in [kind for kind, _ in seen]:
                break

    name, hello = seen[0]
    assert name == "hello"
    assert [row["request_id"] for row in hello["decisions"]] == ["before"]
    assert {one["worker"] for one in hello["workers"]} == {"w0", "w1"}
    assert hello["replicas"][0]["replica"] == "default-0"
    assert hello["ready"] is True


async def test_asking_for_the_head_of_the_events_holds_nothing(alone: httpx.AsyncClient) -> None:
    answer = await alone.head("/v1/events")

    assert answer.status_code == 200
    assert answer.content == b""


async def test_an_open_dashboard_does_not_hold_up_a_drain(engines: list[ReplayEndpoint]) -> None:
    ended = asyncio.Event()

    async def watch(url: str, begun: asyncio.Event) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            async for _ in events(client):
                begun.set()
        ended.set()

    begun = asyncio.Event()
    async with router([engines[0].url], drain_s=120.0) as url:
        watching = asyncio.ensure_future(watch(url, begun))
        await asyncio.wait_for(begun.wait(), 60)
        left_s = asyncio.get_running_loop().time()

    assert asyncio.get_running_loop().time() - left_s < 60.0
    await watching
    assert ended.is_set()


async def test_a_worker_that_stops_answering_is_shown_as_such(
    alone: httpx.AsyncClient, engines: list[ReplayEndpoint]
) -> None:
    rows: dict[str, Any] = {}

    async def check() -> None:
        while rows.get("w1", {}).get("usable", True):
            overview = (await alone.get("/v1/overview?limit=0")).json()
            rows.update({one["worker"]: one for one in overview["workers"]})
            await asyncio.sleep(0.05)

    engines[1].models_body = b"{"

    await asyncio.wait_for(check(), 60)

    assert rows["w1"]["why_not"] == "its engine answers /v1/models with 200, not with its models"
    assert rows["w0"]["usable"]


async def test_a_meta_router_shows_all_buckets_and_finds_their_decisions(
    engines: list[ReplayEndpoint],
) -> None:
    async with (
        router([engines[0].url], bucket="chat") as chat_url,
        router([engines[1].url], bucket="code") as code_url,
        client_of(meta_router([f"chat={chat_url}", f"code={code_url}"])) as client,
    ):
        for bucket in ("chat", "code"):
            await chat(client, PROMPT, f"in-{bucket}", bucket=bucket)
        overview = (await client.get("/v1/overview")).json()
        listed = (await client.get("/v1/decisions?limit=9")).json()["decisions"]
        found = (await client.get("/v1/decisions/in-code")).json()
        unknown = await client.get("/v1/decisions/nobody")
        page = await client.get("/")
        async with contextlib.aclosing(events(client)) as stream:
            hello = await anext(stream)
            follows = await anext(stream)

    assert overview["role"] == "meta-router"
    assert [one["bucket"] for one in overview["buckets"]] == ["chat", "code"]
    assert [one["ready"] for one in overview["replicas"]] == [True, True]
    assert {(one["bucket"], one["worker"]) for one in overview["workers"]} == {
        ("chat", "w0"),
        ("code", "w0"),
    }
    assert overview["counters"]["finished"] == 2
    assert sum(one["finished"] for one in overview["seconds"]) == 2
    assert {one["request_id"] for one in listed} == {"in-chat", "in-code"}
    assert (found["decision"]["bucket"], found["decision"]["router"]) == ("code", "code-0")
    assert unknown.status_code == 404
    assert b"<title>kvmesh</title>" in page.content
    assert hello[0] == "hello"
    assert {row["request_id"] for row in hello[1]["decisions"]} == {"in-chat", "in-code"}
    assert follows[0] in {"overview", "decisions"}


async def test_a_replica_that_goes_away_is_told_and_its_next_life_is_followed(
    engines: list[ReplayEndpoint],
) -> None:
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        one_life = contextlib.AsyncExitStack()
        replica = await one_life.enter_async_context(
            router([engines[0].url], port=port, bucket="chat")
        )
        url = await stack.enter_async_context(meta_router([f"chat={replica}"]))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))
        for number in range(5):
            await chat(client, PROMPT, f"old-{number}")
        before = await overview_when(client, lambda seen: len(seen["decisions"]) == 5)
        await one_life.aclose()
        gone = await overview_when(client, lambda seen: not seen["replicas"][0]["ready"])
        await stack.enter_async_context(router([engines[0].url], port=port, bucket="chat"))
        await chat(client, PROMPT, "new")
        back = await overview_when(
            client, lambda seen: "new" in [row["request_id"] for row in seen["decisions"]]
        )

    assert before["replicas"][0]["ready"]
    assert gone["replicas"][0]["reason"] == "does not answer"
    assert gone["workers"] == []
    assert back["replicas"][0]["ready"]
    assert sum(second["requests"] for second in back["seconds"]) == 6


async def overview_when(client: httpx.AsyncClient, good: Callable[[Any], bool]) -> Any:
    return await seen(client, "/v1/overview", good)


async def test_explain_prints_a_decision_for_people(alone: httpx.AsyncClient) -> None:
    await chat(alone, PROMPT, "first")
    await chat(alone, PROMPT, "to[explain]")

    text = await explained(ExplainOptions("to[explain]", url=str(alone.base_url)))

    assert text.startswith("Request to[explain] went to w")
    assert re.search(r"→ w[01]", text)
    assert "predicted-time = (wait_ms + " in text
    assert re.search(r"Formula for w0: [\d.]+ = ", text)
    assert re.search(r"Formula for w1: [\d.]+ = ", text)
    assert re.search(r"engine reported cached +1,9\d\d of 1,9\d\d tokens", text)
    assert "round robin would find  about 0 blocks" in text
    assert "state                   finished, status 200, tries 1" in text


async def test_explain_decides_a_prompt_without_sending_it(
    alone: httpx.AsyncClient, tmp_path: Path, engines: list[ReplayEndpoint]
) -> None:
    plain, whole = tmp_path / "plain.txt", tmp_path / "body.json"
    plain.write_text("Why is the sky blue? " * 9)
    whole.write_text('{"model": "mock", "prompt": "What is a cache?"}')
    url = str(alone.base_url)

    chatted = await explained(ExplainOptions(prompt_file=plain, url=url, model="mock"))
    completed = await explained(
        ExplainOptions(prompt_file=plain, url=url, endpoint="completions", bucket="default")
    )
    given = await explained(ExplainOptions(prompt_file=whole, url=f"{url}/v1", api_key="none"))

    for text in (chatted, completed, given):
        assert text.startswith("This prompt would go to w")
        assert "no worker holds any of it" in text
    assert not [one for engine in engines for one in engine.seen]


async def test_explain_says_what_the_router_said(alone: httpx.AsyncClient) -> None:
    with pytest.raises(TransportError, match="404: request 'nobody' is not known"):
        await fetch_answer(ExplainOptions("nobody", url=str(alone.base_url)))


async def test_the_explain_command_runs(alone: httpx.AsyncClient) -> None:
    await chat(alone, PROMPT, "by-command")
    arguments = ("explain", "by-command", "--url", str(alone.base_url))

    people = await run_command(*arguments)
    machines = await run_command(*arguments, "--json")

    assert "Request by-command went to w" in people
    assert " requests " in people
    assert "…" not in people
    assert machines == (await alone.get("/v1/decisions/by-command")).text


async def explained(options: ExplainOptions) -> str:
    out = io.StringIO()
    body = await fetch_answer(options)
    print_answer(body, Console(file=out, width=160), dry_run=not options.request_id)
    return out.getvalue()


async def run_command(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kvmesh", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


async def test_the_model_of_round_robin_finds_what_round_robin_finds(
    alone: httpx.AsyncClient,
) -> None:
    prefixes = [f"What everybody asks about thing {number}, always. " * 30 for number in range(4)]
    for number in range(60):
        text = f"{prefixes[number * number % 4]} And {number}?"
        await chat(alone, text, router_mode="round-robin")

    seconds = (await alone.get("/v1/overview")).json()["seconds"]

    def share(part: str, whole: str) -> float:
        return float(sum(one[part] for one in seconds) / sum(one[whole] for one in seconds))

    real = share("cached_tokens", "reported_tokens")
    assert real > 0.5
    assert share("round_robin_tokens", "shadowed_tokens") == pytest.approx(real, abs=0.03)
