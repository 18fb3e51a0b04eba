"""A picker, which sends no client's request itself, warms a worker that joins."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.integration.picker.asking import chat, serve
from tests.integration.picker.live_picker import engines, picker
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

RULES = "You are the assistant of a company with many rules. " * 80
SHARE = 0.5
ASKED = 40
LEAST_SHARE = 0.8


async def test_a_picker_has_a_newcomer_compute_what_is_shared(tmp_path: Path) -> None:
    file, asked = tmp_path / "workers.txt", 0
    async with engines(2) as (first, late):
        file.write_text(f"first={first}\n")
        settings: dict[str, Any] = {
            "discover": (f"file:{file}",),
            "kv_events": True,
            "warm_share": SHARE,
        }
        async with picker([], **settings) as live:

            async def ask_on() -> None:
                nonlocal asked
                # Half of what is computed may be spent.
                await serve(live.gateway, live.client, chat("Something else. " * 1200), {})
                while True:
                    await serve(live.gateway, live.client, chat(f"{RULES} {asked}?"), {})
                    asked += 1

            async def both_serve() -> bool:
                rows = (await live.views.get("/v1/status")).json()["workers"]
                return [one["usable"] for one in rows] == [True, True]

            asking = asyncio.ensure_future(ask_on())
            try:
                await until(lambda: asked >= ASKED)
                file.write_text(f"first={first}\nlate={late}\n")
                await until(both_serve)
                own = msgspec.json.decode(chat(f"{RULES} own?", stream=False))
                answer = await live.client.post(f"{late}/v1/chat/completions", json=own)
                figures = (await live.views.get("/metrics")).text
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

    usage = answer.json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= LEAST_SHARE * usage["prompt_tokens"]
    assert 'kvmesh_warm_requests_total{how="done"} 1.0' in figures
