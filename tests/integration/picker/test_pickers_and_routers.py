"""A bucket with pickers and routers: one view, and HTTP requests only to routers."""

from pathlib import Path

import pytest

from kvmesh.app.ops.nats_server import NatsServer
from tests.integration.picker.asking import chat, serve
from tests.integration.picker.fleet import PickerFleet, running
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

CHATS = 6


async def test_meta_routers_send_requests_to_routers_alone(
    tmp_path: Path, nats_server: NatsServer, namespace: str
) -> None:
    fleet = PickerFleet(tmp_path, nats_server, namespace, engines=2)
    picker, router, front = fleet.add_picker(), fleet.add_router("r0"), fleet.add_front()
    async with running(fleet):
        answers = [
            await fleet.client.post(
                f"{front.url}/v1/chat/completions", content=chat(f"chat {number} " * 40)
            )
            for number in range(CHATS)
        ]
        asked, reported = await serve(
            fleet.gateway(picker), fleet.client, chat("chat 0 " * 40 + "and on"), {}
        )

        async def has_ended() -> bool:
            bookings = [await fleet.status(url) for url in (picker.url, router.url)]
            return all(
                not worker["active_requests"] for one in bookings for worker in one["workers"]
            )

        await until(has_ended)
        seen = await fleet.status(picker.url)
        overview = (await fleet.client.get(f"{router.url}/v1/overview")).json()

    assert {one.headers["x-kvmesh-router"] for one in answers} == {"r0"}
    assert asked
    assert reported["x-kvmesh-router"] == "p0"
    assert reported["x-kvmesh-worker"] == answers[0].headers["x-kvmesh-worker"]
    assert seen["requests"]["requests"] == 1
    assert seen["mesh"]["versions"].keys() == {"router", "picker", "worker"}
    assert {one["replica"]: one["role"] for one in overview["replicas"]} == {
        "r0": "router",
        "p0": "picker",
    }
