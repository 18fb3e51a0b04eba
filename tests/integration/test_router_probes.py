"""A router alone looks at its engines: one that hangs must not cost the others their place."""

import asyncio

import httpx
import pytest

from kvmesh.app import static_workers
from tests.conftest import Eventually
from tests.integration.http.peers import Turn, Upstream, answer
from tests.integration.live_router import chat, router

pytestmark = pytest.mark.integration
MODELS = b'{"object":"list","data":[{"id":"mock","object":"model"}]}'


async def test_an_engine_that_hangs_does_not_keep_the_router_from_looking_at_the_others(
    monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(static_workers, "PROBE_S", 0.05)
    good, hung = Upstream(), Upstream()
    hanging = asyncio.Event()

    async def models(turn: Turn) -> None:
        turn.send(answer(MODELS, b"Content-Type: application/json"))

    async def models_once(turn: Turn) -> None:
        if hanging.is_set():
            await turn.gone()
        else:
            await models(turn)

    good.script, hung.script = models, models_once
    await good.start()
    await hung.start()
    async with router([good.origin, hung.origin]) as url, httpx.AsyncClient(base_url=url) as client:
        hanging.set()
        await eventually(lambda: any(b"/v1/models" in turn.head for turn in hung.turns[-1:]))
        looks = len(good.turns)

        await eventually(lambda: len(good.turns) > looks + 10, timeout_s=1.8)

        assert (await chat(client, "hello", worker_id="w0")).status_code == 200
    await good.close()
    await hung.close()
