"""`kvmesh analyze` on a trace file and on a live router."""

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest

from kvmesh.client import AsyncClient
from tests.integration.support import live_router
from tests.integration.support.live_router import mockers

pytestmark = pytest.mark.integration

TRACE = Path(__file__).parents[2] / "fixtures/traces/mooncake_conversation_80_b512.jsonl"


async def analyze(*arguments: str) -> tuple[int, str, str]:
    return await kvmesh("analyze", *arguments)


async def kvmesh(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kvmesh", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_trace_is_measured_and_advised() -> None:
    code, out, err = await analyze(str(TRACE), "--engines", "4")

    assert (code, err) == (0, "")
    assert "80 requests" in out
    assert "--router-mode" in out


async def test_the_number_of_blocks_decides_the_weight_on_cache_usage(tmp_path: Path) -> None:
    trace = tmp_path / "conversations_b64.jsonl"
    trace.write_text(conversations(sessions=9, turns=6))
    code, out, err = await analyze(str(trace), "--num-gpu-blocks", "2000000")

    assert (code, err) == (0, "")
    assert "gpu_cache_usage_weight=0.25" in out
    assert "2,000,000 KV blocks" in out


async def test_json_has_figures_and_advice() -> None:
    _, out, _ = await analyze(str(TRACE), "--json", "--requests", "40")

    report = json.loads(out)
    assert report["figures"]["requests"] == 40
    assert report["advice"][0]["what"]


async def test_a_live_router_is_measured() -> None:
    async with (
        mockers() as (engine,),
        live_router.router([engine.url]) as url,
        AsyncClient(url) as client,
    ):
        for number in range(24):
            prompt = "Once upon a time. " * 30 + str(number)
            await client.kv({"model": "mock", "max_tokens": 1, "prompt": prompt})
        code, out, err = await analyze("--live", "--url", url)

    assert (code, err) == (0, "")
    assert "24 requests in the last ten minutes" in out
    assert "1 of 1" in out
    assert "one worker alone holds it" in out


async def test_an_ab_test_is_no_alarm(tmp_path: Path) -> None:
    trace = tmp_path / "conversations_b64.jsonl"
    trace.write_text(conversations(sessions=9, turns=6))
    async with (
        live_router.mockers(4) as engines,
        live_router.router([one.url for one in engines]) as url,
    ):
        code, out, err = await kvmesh(
            *("replay", str(trace), "--url", url, "--compare", "round-robin,kv"),
            *("--concurrency", "4", "--no-progress", "--settle-s", "0"),
        )
        await live_router.settled(url, "finished", 108)
        _, tested, _ = await analyze("--live", "--url", url)
        _, figures, _ = await analyze("--live", "--url", url, "--json")

    assert (code, "hit rate" in out) == (0, True), err
    assert ["requests that named another policy, or a worker", "54"] in rows(tested)
    assert "routers predicted" not in tested
    traffic = json.loads(figures)["figures"]["traffic"]
    assert (traffic["requests"], traffic["overridden"], traffic["own"]) == (108, 54, 54)
    assert traffic["cached"] == pytest.approx(traffic["predicted"], abs=0.05)
    assert traffic["cached"] - traffic["saved"] > 0.1


def conversations(sessions: int, turns: int) -> str:
    """Return a trace of conversations that begin alike and grow by 128 tokens a turn."""
    lines = []
    for number in range(turns * sessions):
        turn, session = divmod(number, sessions)
        ids = [0, *(1000 * (session + 1) + block for block in range(2 * (turn + 1)))]
        line = {"timestamp": 50 * number, "input_length": 64 * len(ids), "output_length": 2}
        lines.append(json.dumps(line | {"hash_ids": ids}))
    return "\n".join(lines)


def rows(table: str) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()]


async def test_nonsense_is_refused_in_one_line() -> None:
    for arguments in ((), (str(TRACE), "--live"), ("no-such-file.jsonl",)):
        code, out, err = await analyze(*arguments)

        assert (code, out) == (2, "")
        assert err.startswith("kvmesh: ")
        assert err.count("\n") == 1
