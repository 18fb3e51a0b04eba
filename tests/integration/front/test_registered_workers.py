"""Engines that come and go by POST and DELETE /workers, as RL frameworks register them."""

import httpx
import msgspec
import pytest

from kvmesh.app.front.front import url_guard
from kvmesh.app.router.mesh_choice import registered_workers
from kvmesh.settings.roles import RouterSettings
from tests.integration.support.live_router import client_of, engine, mocker_options, router
from tests.integration.support.waiting import seen

pytestmark = pytest.mark.integration


def body(text: str, **more: object) -> dict[str, object]:
    return {"model": "mock", "prompt": text, "max_tokens": 4} | more


async def until_usable(client: httpx.AsyncClient, count: int) -> list[dict[str, object]]:
    page = await seen(
        client,
        "/workers",
        lambda told: [one["is_healthy"] for one in told["workers"]] == [True] * count,
    )
    return list(page["workers"])


async def test_an_engine_registers_serves_and_leaves_without_losing_a_stream() -> None:
    async with (
        engine(mocker_options(16, 512)) as first,
        engine(mocker_options(16, 512)) as second,
        client_of(router([first.url])) as client,
    ):
        before = await until_usable(client, 1)
        told = await client.post("/workers", json={"url": second.url, "name": "two", "x": 1})
        both = await until_usable(client, 2)
        headers = {"x-kvmesh-worker-id": "two"}
        long = body("a story", max_tokens=60, stream=True)
        async with client.stream("POST", "/v1/completions", json=long, headers=headers) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            gone = await client.delete("/workers/two")
            await until_usable(client, 1)
            rest = [line async for line in lines]
        after = [await client.post("/v1/completions", json=body(f"{n}")) for n in range(8)]
        twice = await client.delete("/workers/two")

    assert [one["registered"] for one in before] == [False]
    assert (told.status_code, told.json()["worker_id"], told.json()["location"]) == (
        202,
        "two",
        "/workers/two",
    )
    assert {str(one["url"]): one["registered"] for one in both} == {
        first.url: False,
        second.url: True,
    }
    assert stream.headers["x-kvmesh-worker"] == "two"
    assert (gone.status_code, rest[-2:]) == (202, ["data: [DONE]", ""])
    assert {one.headers["x-kvmesh-worker"] for one in after} == {str(before[0]["id"])}
    assert twice.status_code == 404


async def test_what_cannot_be_registered_or_removed_is_told_why() -> None:
    async with engine(mocker_options(16, 64)) as one, client_of(router([one.url])) as client:
        (known,) = await until_usable(client, 1)
        wrong = [
            await client.post("/workers", content=b"{}"),
            await client.post("/workers", json={"url": "ftp://h:1"}),
            await client.post("/workers", json={"url": "http://h:1,zmq=off"}),
            await client.post("/workers", json={"url": "http://h:1", "name": str(known["id"])}),
            await client.post("/workers", json={"url": "http://169.254.169.254"}),
            await client.post("/workers", json={"url": one.url}, headers={"x-real-ip": "10.0.0.1"}),
            await client.delete(f"/workers/{known['id']}"),
            await client.delete(f"/workers?url={one.url}"),
            await client.delete("/workers?url=http://nowhere:1"),
            await client.delete("/workers/nobody"),
            await client.get("/workers/nobody"),
        ]
        (still,) = await until_usable(client, 1)

    codes = [one.status_code for one in wrong]
    assert codes == [400, 400, 400, 400, 403, 403, 409, 409, 404, 404, 405]
    assert all(one.json()["error"]["message"] for one in wrong)
    assert still["id"] == known["id"]


async def test_one_is_removed_by_its_url_and_may_come_back() -> None:
    async with (
        engine(mocker_options(16, 64)) as first,
        engine(mocker_options(16, 64)) as second,
        client_of(router([first.url])) as client,
    ):
        for _ in range(2):
            await client.post("/workers", json={"url": second.url, "model_id": "mock"})
            await until_usable(client, 2)
            gone = await client.delete(f"/workers?url={second.url}")
            assert gone.status_code == 202
            await until_usable(client, 1)


@pytest.mark.parametrize("by", ["?url={url}", "/two", "/two-dp1"])
async def test_an_engine_of_several_ranks_is_removed_with_all_of_them(by: str) -> None:
    ranks = msgspec.structs.replace(
        mocker_options(16, 64, data_parallel_size=2), kv_events_port=0, replay_port=0
    )
    async with (
        engine(mocker_options(16, 64)) as first,
        engine(ranks) as second,
        client_of(router([first.url])) as client,
    ):
        await client.post("/workers", json={"url": second.url, "name": "two"})
        there = await until_usable(client, 3)
        gone = await client.delete(f"/workers{by.format(url=second.url)}")
        left = await until_usable(client, 1)

    assert [one["registered"] for one in there if one["url"] == second.url] == [True, True]
    assert (gone.status_code, left[0]["url"]) == (202, first.url)


@pytest.mark.parametrize(
    "settings", [RouterSettings(), RouterSettings(worker=("http://h:1",), processes=2)]
)
def test_a_router_of_a_mesh_and_one_of_several_processes_has_none(settings: RouterSettings) -> None:
    guard = url_guard(settings.upstream, [], settings.nats.nats_url)

    assert registered_workers(settings, guard) is None
