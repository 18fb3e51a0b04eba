"""Routers over engines that make many tokens of a picture, and tell them when asked."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.app.prompts import token_check
from kvmesh.app.prompts.token_check import TokenCheck
from kvmesh.errors import RequestError
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh_lab.mocker.api import MockerApi
from tests.integration.support.live_router import client_of, mockers, router
from tests.integration.support.waiting import until
from tests.unit.app.prompts.tokenizer_models import PARTS, write_model

pytestmark = pytest.mark.integration

PICTURE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TEXT = {"type": "text", "text": "What is in this picture, and what is missing there? " * 4}
BLOCK: dict[str, Any] = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
}


@contextlib.asynccontextmanager
async def routed(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    model = write_model(tmp_path / "eyes", template=PARTS)
    async with mockers(tokenizer=model) as (mocker,):
        settings: dict[str, Any] = {"tokenizer": Path(model), "parity_sample": 0}
        async with client_of(router([mocker.url], **settings)) as client:
            yield client


async def unforeseen(client: httpx.AsyncClient) -> str:
    chat = [{"role": "user", "content": [TEXT, PICTURE]}]
    body = {"model": "mock", "max_tokens": 2, "messages": chat}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    reason: str = answer.headers.get("x-kvmesh-unforeseen", "")
    return reason


async def test_a_picture_is_followed_once_its_engine_told_of_it(tmp_path: Path) -> None:
    async with routed(tmp_path) as client:
        first = await unforeseen(client)

        async def known() -> bool:
            return not await unforeseen(client)

        await until(known)

    assert first == "media"


async def test_a_question_too_many_is_asked_with_the_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with routed(tmp_path) as client:
        with monkeypatch.context() as none:
            none.setattr(token_check, "MAX_IN_FLIGHT", 0)
            assert await unforeseen(client) == "media"

        async def known() -> bool:
            return not await unforeseen(client)

        await until(known)


async def test_engines_that_tell_no_names_are_not_asked_for_each_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a vLLM without --enable-scale-out, which is started anew with it later."""
    asked: list[str] = []
    serve = MockerApi._render

    def refuse(api: MockerApi, exchange: Exchange) -> None:
        asked.append(exchange.request.path)
        if len(asked) > 1:
            serve(api, exchange)
        else:
            raise RequestError("Scale-out endpoints are disabled.", status=403)

    monkeypatch.setattr(MockerApi, "_render", refuse)
    async with routed(tmp_path) as client:
        body = {"messages": [{"role": "user", "content": [TEXT, BLOCK]}], "max_tokens": 2}

        async def refused() -> bool:
            sent = await client.post("/v1/messages", json=body)
            assert sent.headers["x-kvmesh-unforeseen"] == "media"
            return bool(asked)

        await until(refused)
        for number in range(3):
            other = BLOCK | {"source": {**BLOCK["source"], "data": f"AAA{number}"}}
            more = body | {"messages": [{"role": "user", "content": [TEXT, other]}]}
            sent = await client.post("/v1/messages", json=more)
            assert sent.headers["x-kvmesh-unforeseen"] == "media"

        # The chat's own picture is asked about as ever.
        assert await unforeseen(client) == "media"
        told = await client.post(
            "/v1/route", json={"messages": [{"role": "user", "content": [BLOCK]}]}
        )

        assert len(asked) == 1
        monkeypatch.setattr(TokenCheck, "tells_names", lambda _: True)

        async def followed() -> bool:
            return (
                "x-kvmesh-unforeseen" not in (await client.post("/v1/messages", json=body)).headers
            )

        await until(followed)

    assert told.json()["media"].endswith("its content did not come with it")
