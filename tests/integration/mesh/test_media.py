"""Pictures in a mesh: engines tell their names, sidecars and replicas follow them."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.settings.roles import NatsSettings
from kvmesh_lab.mocker.command import Mocker
from kvmesh_lab.mocker.media import LEAST_TOKENS
from tests.engines.traffic import read_usage
from tests.integration.support.live_router import mockers, replica, sidecar
from tests.integration.support.waiting import until
from tests.unit.app.prompts.tokenizer_models import PARTS, write_model

pytestmark = pytest.mark.integration

SIZE = 16
TEXT = "What is in this picture, and what is missing there? " * 4
APIS = ("chat/completions", "responses", "messages")


@contextlib.asynccontextmanager
async def mesh(
    nats_url: str, namespace: str, model: str
) -> AsyncIterator[tuple[list[httpx.AsyncClient], list[Mocker]]]:
    """Run two replicas over two engines with sidecars."""
    nats = NatsSettings(nats_url=nats_url, namespace=namespace)
    async with (
        mockers(2, tokenizer=model, block_size=SIZE) as engines,
        sidecar(engines[0].url, nats, "w0"),
        sidecar(engines[1].url, nats, "w1"),
        replica(nats, "r0", tokenizer=Path(model), parity_sample=0) as first,
        replica(nats, "r1", tokenizer=Path(model), parity_sample=0) as second,
    ):
        yield [first, second], engines


def content(api: str, *shown: int) -> list[dict[str, Any]]:
    """Return a text, a picture of that number, a text, and so on."""
    parts: list[dict[str, Any]] = []
    for number in shown:
        data = f"{number:08d}"
        url = f"data:image/png;base64,{data}"
        picture: dict[str, Any] = {"type": "image_url", "image_url": {"url": url}}
        if api == "responses":
            picture = {"type": "input_image", "image_url": url, "detail": "auto"}
        elif api == "messages":
            source = {"type": "base64", "media_type": "image/png", "data": data}
            picture = {"type": "image", "source": source}
        kind = "input_text" if api == "responses" else "text"
        parts += [{"type": kind, "text": TEXT}, picture]
    return parts


async def settled(clients: list[httpx.AsyncClient], engines: list[Mocker]) -> None:
    """Wait until all replicas hold what the engines do, and know that no request is under way."""
    held = {f"w{n}": len(one.ranks[0].dump()) // 8 for n, one in enumerate(engines)}

    async def reported(client: httpx.AsyncClient) -> bool:
        status = (await client.get("/v1/status")).json()
        if any(one["active_requests"] for one in status["workers"]):
            return False
        trusted = [one["trust"] for one in status["workers"]] == ["exact"] * len(engines)
        blocks = status["mesh"]["blocks"]
        return trusted and all(blocks.get(name, 0) == count for name, count in held.items())

    for client in clients:
        await until(lambda client=client: reported(client))  # type: ignore[misc]


async def ask(
    client: httpx.AsyncClient, api: str, *shown: int, turns: int = 0
) -> tuple[str, int, int]:
    """Return what is not foretold of a chat, and what of it was predicted and reused, in blocks."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": content(api, *shown)}]
    for _ in range(turns):
        messages += [{"role": "assistant", "content": "A cat."}, {"role": "user", "content": TEXT}]
    field, limit = "messages", "max_tokens"
    if api == "responses":
        field, limit = "input", "max_output_tokens"
    body = {"model": "mock", field: messages, limit: 2}
    answer = await client.post(f"/v1/{api}", json=body)
    assert answer.status_code == 200, answer.text
    predicted = int(answer.headers["x-kvmesh-overlap-blocks"])
    _, cached = read_usage(answer.json()["usage"])
    return answer.headers.get("x-kvmesh-unforeseen", ""), predicted, cached // SIZE


@pytest.mark.parametrize("api", APIS)
async def test_replicas_foresee_what_engines_reuse_of_pictures(
    api: str, nats_server: NatsServer, namespace: str, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "eyes", template=PARTS)
    async with mesh(nats_server.url, namespace, model) as (clients, engines):
        for client in clients:

            async def known(client: httpx.AsyncClient = client) -> bool:
                await settled(clients, engines)
                return (await ask(client, api, 1, 2))[0] == ""

            await until(known)
        made: list[tuple[str, int, int]] = []
        for turns in range(4):
            await settled(clients, engines)
            made.append(await ask(clients[turns % 2], api, 1, 2, turns=turns))
        # The other picture first: nothing but the text in front is shared.
        await settled(clients, engines)
        swapped = await ask(clients[0], api, 2, 1)

    assert [one[0] for one in (*made, swapped)] == [""] * 5
    assert [one[1] for one in made] == [one[2] for one in made]
    assert made[0][1] > 2 * LEAST_TOKENS // SIZE
    assert 0 < swapped[1] == swapped[2] < LEAST_TOKENS // SIZE + len(TEXT) // SIZE
