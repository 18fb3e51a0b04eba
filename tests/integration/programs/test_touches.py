"""The context of an agent that waits for its tool outlives that of one that has ended."""

from functools import partial
from typing import Any

import httpx
import msgspec
import pytest

from kvmesh.settings.requests import ProgramSettings
from tests.integration.support.live_router import client_of, engine, mocker_options, router
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

SLOW = "linear,prefill_per_token=0.2,decode_base=2"
NAME = "x-claude-code-session-id"


def words(agent: str, tokens: int) -> list[Any]:
    """Return a prompt of about so many tokens, which are bytes."""
    return [{"role": "user", "content": (f"{agent} has to do this. " * tokens)[:tokens]}]


async def ask(client: httpx.AsyncClient, agent: str, messages: list[Any], **headers: str) -> int:
    """Take a turn; return how much of its prompt was cached."""
    body = {"model": "mock", "max_tokens": 4, "messages": messages}
    named = {NAME: agent} | {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await client.post("/v1/chat/completions", json=body, headers=named)
    answer.raise_for_status()
    cached: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


async def touches(client: httpx.AsyncClient, how: str) -> float:
    page = (await client.get("/metrics")).text
    name = f'kvmesh_program_touches_total{{how="{how}"}}'
    return next(
        (float(line.split()[-1]) for line in page.splitlines() if line.startswith(name)), -1.0
    )


async def touched(client: httpx.AsyncClient) -> bool:
    return await touches(client, "done") >= 1


@pytest.mark.parametrize("re_touch", ["on", "off"])
async def test_who_waits_keeps_its_context_when_one_that_ended_is_in_the_way(re_touch: Any) -> None:
    slow = msgspec.structs.replace(mocker_options(16, 256), timing_profile=SLOW)
    programs = ProgramSettings(program_turns="observe", re_touch=re_touch)
    async with (
        engine(slow) as mocker,
        client_of(
            router([mocker.url], kv_events=True, parity_sample=0, program=programs)
        ) as client,
    ):
        waits = words("waits", 1300)
        await ask(client, "waits", waits)
        await ask(client, "gone", words("gone", 1400), x_kvmesh_program_final="1")
        if re_touch == "on":
            await until(partial(touched, client))
        await ask(client, "new", words("new", 2500), x_kvmesh_program_final="1")

        cached = await ask(client, "waits", [*waits, *words("tool", 40)])

        failed = await touches(client, "failed")
    if re_touch == "on":
        assert cached > 1200
        assert failed == 0.0
    else:
        assert cached < 1000
        assert failed == -1.0
