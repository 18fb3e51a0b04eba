"""A router alone, started beside an engine whose replay buffer has gone over its beginning."""

import contextlib
import time
from pathlib import Path

import httpx
import pytest

from kvmesh_lab.mocker.command import Mocker, MockerOptions
from tests.chaos.process import MeshProcess, fixed_ports
from tests.integration.support.small_mesh import answer_with

pytestmark = pytest.mark.integration

BUFFER_STEPS = 40
PATIENT_S = 60.0


async def ask(client: httpx.AsyncClient, url: str, number: int) -> httpx.Response:
    prompt = f"{'what all prompts begin with ' * 20} {number} " + f"prompt {number} " * 20
    body = {"model": "mock", "prompt": prompt, "max_tokens": 20}
    answer = await client.post(f"{url}/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer


async def test_it_knows_the_engine_exactly_after_some_answers(tmp_path: Path) -> None:
    engine = Mocker(
        MockerOptions(
            port=0,
            kv_events_port=0,
            replay_port=0,
            buffer_steps=BUFFER_STEPS,
            timing_profile="instant",
        )
    )
    await engine.start()
    (port,) = fixed_ports(1)
    url = f"http://127.0.0.1:{port}"
    arguments = ("router", "--http-port", str(port), "--worker", engine.url)
    router = MeshProcess("router", url, arguments, tmp_path / "router.log")
    async with httpx.AsyncClient(timeout=20) as client:
        try:
            for number in range(2 * BUFFER_STEPS):
                await ask(client, engine.url, number)
            router.start()
            await answer_with(client, router, "/ready", 200)

            trusts: list[str] = []
            number, deadline_s = 1000, time.monotonic() + PATIENT_S
            while (trusts or ["none"])[-1] != "exact" or "degraded" not in trusts:
                answer = await ask(client, url, number)
                trusts.append(answer.headers["x-kvmesh-trust"])
                number += 1
                assert time.monotonic() < deadline_s, trusts[-20:]

            answer = await ask(client, url, number)
            cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert int(answer.headers["x-kvmesh-overlap-blocks"]) == cached // 16 > 0
        finally:
            router.kill()
            with contextlib.suppress(TimeoutError):
                await engine.stop()
