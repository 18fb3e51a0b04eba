"""The clients' oracle: what is right by its status and wrong in its words is found."""

import json
import random
from collections.abc import AsyncIterator

import pytest

from kvmesh.transport.http.server.exchange import Exchange
from tests.chaos.answers.truth import Truth
from tests.chaos.clients import Clients
from tests.integration.support.failing_engine import failing_engines
from tests.integration.support.live_router import engine, mocker_options, router

pytestmark = pytest.mark.integration


@pytest.fixture
async def urls() -> AsyncIterator[tuple[str, str]]:
    """Two engines that know nothing of each other."""
    async with (
        engine(mocker_options(16, 400)) as one,
        engine(mocker_options(16, 400)) as other,
    ):
        yield one.url, other.url


async def outcomes(clients: Clients, count: int = 12) -> set[str]:
    found = {await clients.ask() for _ in range(count)}
    await clients.close()
    return found


async def test_answers_of_any_engine_are_those_of_the_one_beside(urls: tuple[str, str]) -> None:
    engine_url, beside = urls
    truth = Truth(beside)
    async with router([engine_url]) as door:
        clients = Clients(door, random.Random(1), truth)
        found = await outcomes(clients)
    await truth.close()

    assert (found, clients.wrong) == ({"whole"}, [])


def lie(exchange: Exchange) -> None:
    """Answer whole and well-formed, with a text that nobody wrote."""
    asked = json.loads(exchange.request.body)
    usage = {"prompt_tokens": 1, "completion_tokens": asked["max_tokens"]}
    if not asked["stream"]:
        choice = {"index": 0, "message": {"content": "lie"}, "finish_reason": "length"}
        whole = {"id": "x", "model": "mock", "choices": [choice], "usage": usage}
        exchange.respond(200, json.dumps(whole).encode())
        return
    exchange.start(200, ((b"content-type", b"text/event-stream"),))
    choice = {"index": 0, "delta": {"content": "lie"}, "finish_reason": "length"}
    chunk = {"id": "x", "model": "mock", "choices": [choice], "usage": usage}
    exchange.write(b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(chunk).encode())
    exchange.end()


async def test_a_wrong_text_with_status_200_is_found(urls: tuple[str, str]) -> None:
    truth = Truth(urls[0])
    async with failing_engines(1) as (liar,):
        liar.answer = lie
        clients = Clients(liar.url, random.Random(1), truth)
        found = await outcomes(clients)
    await truth.close()

    assert found == {"wrong"}
    assert len(clients.wrong) == 12
    assert all("the answer must be" in one for one in clients.wrong)
