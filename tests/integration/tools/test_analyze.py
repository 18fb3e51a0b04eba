"""`kvmesh analyze` on a trace file and on a live router."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from kvmesh.client import AsyncClient
from kvmesh.mocker.command import Mocker, MockerOptions
from tests.integration.support import live_router

pytestmark = pytest.mark.integration

TRACE = Path(__file__).parents[2] / "fixtures/traces/mooncake_conversation_80_b512.jsonl"


async def analyze(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kvmesh", "analyze", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_trace_is_measured_and_advised() -> None:
    code, out, err = await analyze(str(TRACE), "--workers", "4")

    assert (code, err) == (0, "")
    assert "80 requests" in out
    assert "--router-mode" in out


async def test_json_has_figures_and_advice() -> None:
    _, out, _ = await analyze(str(TRACE), "--json", "--requests", "40")

    report = json.loads(out)
    assert report["figures"]["requests"] == 40
    assert report["advice"][0]["what"]


async def test_a_live_router_is_measured() -> None:
    engine = Mocker(
        MockerOptions(port=0, kv_events_port=0, replay_port=0, timing_profile="instant")
    )
    await engine.start()
    async with live_router.router([engine.url]) as url, AsyncClient(url) as client:
        for number in range(24):
            prompt = "Once upon a time. " * 30 + str(number)
            await client.kv({"model": "mock", "max_tokens": 1, "prompt": prompt})
        code, out, err = await analyze("--live", "--url", url)
    await engine.stop()

    assert (code, err) == (0, "")
    assert "24 requests in the last ten minutes" in out
    assert "1 of 1" in out
    assert "one worker alone holds it" in out


async def test_nonsense_is_refused_in_one_line() -> None:
    for arguments in ((), (str(TRACE), "--live"), ("no-such-file.jsonl",)):
        code, out, err = await analyze(*arguments)

        assert (code, out) == (2, "")
        assert err.startswith("kvmesh: ")
        assert err.count("\n") == 1
