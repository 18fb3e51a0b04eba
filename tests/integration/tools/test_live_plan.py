"""`kvmesh plan` from the log of a router over live engines, and its check a moment later."""

from io import StringIO
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from kvmesh.settings.features import TuneSettings
from kvmesh_lab.plan.command import plan
from kvmesh_lab.plan.options import PlanOptions
from kvmesh_lab.replay.command import run_replay
from kvmesh_lab.replay.options import ReplayOptions
from tests.integration.support.live_router import router
from tests.integration.support.waiting import until
from tests.integration.tools.mocker_process import mocker_process
from tests.unit.simulator.test_command import write_trace

pytestmark = pytest.mark.integration

BLOCK = 64
BLOCKS = 2000
REQUESTS = 80
SLOW = 0.1
"""Engines at a tenth of their speed: what a busy machine adds counts little."""

FACTOR = 2.0
"""What is timed beside other tests may be so many times off."""


async def log_of(engines: list[str], trace: Path, path: Path) -> Path:
    """Send the trace through a router over `engines`; return its log."""
    tune = TuneSettings(auto_tune="propose")
    async with (
        router(engines, tune=tune, kv_events=True) as url,
        httpx.AsyncClient(base_url=url, timeout=20) as client,
    ):
        options = ReplayOptions(
            trace, url=url, endpoint="completions", prompt_unit="token-ids", time_scale=8.0,
            progress=False,
        )  # fmt: skip
        summary = (await run_replay(options)).runs[0].summary
        assert summary.succeeded == REQUESTS

        async def whole() -> httpx.Response | None:
            answer = await client.get("/admin/trace")
            return answer if answer.text.count("\n") >= 0.9 * REQUESTS else None

        answer = await until(whole)
        path /= answer.headers["content-disposition"].split('"')[1]
        path.write_bytes(answer.content)
    return path


async def test_a_routers_own_log_is_planned_from_and_checked(tmp_path: Path) -> None:
    kept, out = tmp_path / "plan.json", StringIO()
    flags = {"block_size": BLOCK, "num_gpu_blocks_override": BLOCKS, "speedup_ratio": SLOW}
    trace = write_trace(tmp_path, REQUESTS)
    async with mocker_process(**flags) as one, mocker_process(**flags) as two:
        log = await log_of([one, two], trace, tmp_path)

    console = Console(file=out, width=200)
    slo = "ttft=60s,tpot=10s"
    found = plan(PlanOptions(log, slo=slo, save=kept, seeds=2), console, console)
    checked = plan(PlanOptions(log, check=kept), console, console)

    print(out.getvalue())  # noqa: T201  the figures, with -s
    assert found.answer == {"learned": 1}
    assert log.name == "default_b128.jsonl"
    engine = found.kinds[0].engine
    assert engine.num_gpu_blocks * engine.block_size == pytest.approx(BLOCK * BLOCKS, rel=0.01)
    (check,) = checked.checks
    assert (check.engines, check.load) == (2, 1.0)
    assert set(check.ratios) == {"ttft", "tpot", "e2e"}
    for name, ratio in check.ratios.items():
        assert 1.0 / FACTOR < ratio < FACTOR, (name, ratio)
