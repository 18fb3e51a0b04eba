"""Routers over engines that make many tokens of a picture, and tell them when asked."""

import contextlib
from array import array
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.app.prompts import token_check
from kvmesh.app.prompts.tokenizer import ModelTokenizer, load_tokenizer
from kvmesh.core.chat.chat import ChatInput
from kvmesh_lab.mocker.command import Mocker, MockerOptions
from tests.integration.support.live_router import client_of, router
from tests.integration.support.waiting import until
from tests.unit.app.prompts.tokenizer_models import PARTS, SPECIAL, write_model

pytestmark = pytest.mark.integration

COUNT = 64
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TEXT = {"type": "text", "text": "What is in this picture, and what is missing there? " * 4}


class Eyes:
    """A tokenizer for which a chat that ends with a picture has `COUNT` tokens of it."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode_chat(self, chat: ChatInput) -> "array[int]":
        ids = self._tokenizer.encode_chat(chat)
        if chat.truncated:
            ids.extend([SPECIAL.index("<|image_pad|>")] * COUNT)
            ids += self._tokenizer.encode("<|im_end|>\n", add_special_tokens=False)
        return ids


@contextlib.asynccontextmanager
async def routed(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    model = write_model(tmp_path / "eyes", template=PARTS)
    options = MockerOptions(
        timing_profile="instant", port=0, kv_events_port=0, replay_port=0, tokenizer=model
    )
    mocker = Mocker(options, Eyes(load_tokenizer(model)))
    await mocker.start()
    try:
        settings: dict[str, Any] = {"tokenizer": Path(model), "parity_sample": 0}
        async with client_of(router([mocker.url], **settings)) as client:
            yield client
    finally:
        await mocker.stop()


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
