"""Agents as their clients name them, or nobody does, seen at a real router."""

from typing import Any

import httpx
import msgspec
import pytest

from kvmesh.settings.requests import ProgramSettings
from tests.integration.support.live_router import client_of, engine, mocker_options, router

pytestmark = pytest.mark.integration

UUID = "0199a213-81c0-7800-8aa1-bbab2a035a53"
LONG = "What was said so far, at length. " * 160


def chat(content: str, **more: Any) -> dict[str, Any]:
    said = {"role": "user", "content": content}
    return {"model": "mock", "messages": [said], "max_tokens": 4} | more


async def post(client: httpx.AsyncClient, body: Any, path: str, **headers: str) -> None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await client.post(path, json=body, headers=named)
    assert answer.status_code == 200, answer.text


async def test_agents_are_known_by_their_clients_words_and_how_their_turns_ended() -> None:
    path = "/v1/chat/completions"
    async with (
        engine(mocker_options(16, 4096)) as mocker,
        client_of(router([mocker.url], program=ProgramSettings(program_turns="on"))) as client,
    ):
        await post(client, chat("a"), path, x_claude_code_session_id="s")
        await post(
            client, chat("b"), path, x_claude_code_session_id="s", x_claude_code_agent_id="a"
        )
        await post(client, chat("c", stream=True), path, session_id="s2")
        await post(client, chat("d", prompt_cache_key="1" + UUID[1:]), path)
        hints = {"agent_hints": {"osl": 3, "priority": 2}}
        await post(client, chat("e", nvext=hints), path, x_dynamo_session_id="s3")
        await post(client, chat("f", kvmesh={"program": "mine"}), path)
        user = {"user_id": f"user_ab_account__session_{UUID}"}
        await post(client, chat("g", metadata=user), "/v1/messages")
        await post(client, chat("h"), path, x_session_id="x" * 300)
        await post(client, chat("i"), path)
        shown = (await client.get("/v1/programs")).json()["programs"]
        wrong = await client.post(path, json=chat("j"), headers={"x-kvmesh-program": "x" * 300})

    assert sorted(one["client"] for one in shown) == [
        "claude-code",
        "claude-code",
        "claude-code",
        "codex",
        "codex",
        "dynamo",
        "kvmesh",
    ]
    assert len({one["agent"] for one in shown}) == 7
    assert len({one["program"] for one in shown}) == 6
    assert {one["stop"] for one in shown} == {"length"}
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-kvmesh-program")


@pytest.mark.parametrize("more", [{}, {"kvmesh": {"priority": 1}}], ids=["quick", "general"])
async def test_an_agent_that_nobody_names_is_known_from_its_second_prompt_on(more: Any) -> None:
    body = chat(LONG, **more)
    async with (
        engine(mocker_options(16, 4096)) as mocker,
        client_of(router([mocker.url], program=ProgramSettings(program_turns="on"))) as client,
    ):
        turns = []
        for _ in range(3):
            await post(client, body, "/v1/chat/completions")
            body = msgspec.json.decode(msgspec.json.encode(body))
            body["messages"].append({"role": "assistant", "content": "It is done."})
            body["messages"].append({"role": "user", "content": "Go on, please, with all of it."})
            shown = (await client.get("/v1/programs")).json()["programs"]
            turns.append([(one["client"], one["turns"]) for one in shown])
        await post(client, chat("Short."), "/v1/chat/completions")
        await post(client, chat("Other. " + LONG), "/v1/chat/completions")
        last = (await client.get("/v1/programs")).json()["programs"]

    assert turns == [[], [("chain", 1)], [("chain", 2)]]
    assert len(last) == 1
