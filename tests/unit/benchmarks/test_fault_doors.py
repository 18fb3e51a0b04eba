import asyncio
import json
from pathlib import Path

import httpx
import pytest

from benchmarks.faults.cells import Load
from benchmarks.faults.doors import Door, Ports, Site, sidecars
from benchmarks.faults.engine import TinyEngine
from benchmarks.faults.load import ask, chat, make_client, send
from benchmarks.faults.scenes import without_events

pytestmark = pytest.mark.integration

AGAIN = Load("again", 3, 1)


def test_sidecars_of_engines_without_events_are_told_so(tmp_path: Path) -> None:
    door = Door("mesh", True, lambda _: [], sidecars)
    site = Site(Ports(1), 1, ["http://e:1", "http://e:2"], tmp_path, "nats://n", "space")

    commands = without_events(door).stay(site)

    assert [command[-1] for command in commands] == ["--no-kv-events"] * 2
    assert "--namespace=space" in commands[0]


async def test_a_tiny_engine_fails_the_next_chats_in_order_and_then_serves() -> None:
    engine = TinyEngine()
    port = int((await engine.start()).rpartition(":")[2])
    engine.faults.extend(["500", "reset", "cut", "hang"])
    try:
        async with make_client(port) as client:
            seen = [(await ask(client, chat("t", "q"), 0.5)).problem for _ in range(4)]
            served = await send(client, AGAIN, lambda n: chat("t", f"q{n}"))
            health = await client.get("/health")
    finally:
        engine.stop()

    assert seen == ["500", "cut", "cut", "timeout"]
    assert {one.problem for one in served} == {""}
    assert health.status_code == 200
    assert engine.chats() == 4 + AGAIN.requests
    assert len(engine.failed_s) == 4


async def test_a_tiny_engine_closes_the_connection_on_poison_and_on_http_2() -> None:
    engine = TinyEngine()
    url = await engine.start()
    port = int(url.rpartition(":")[2])
    try:
        async with make_client(port) as client:
            poisoned = await ask(client, chat("t", "some POISON"), 5.0)
            served = await ask(client, chat("t", "some food"), 5.0)
            models = await client.get("/v1/models")
            with pytest.raises(httpx.HTTPStatusError):
                (await client.get("/kv_event_sources")).raise_for_status()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        answered = await reader.read()
        writer.close()
    finally:
        engine.stop()

    assert poisoned.problem == "cut"
    assert served.problem == ""
    assert json.loads(models.content)["data"][0]["id"] == "m"
    assert answered == b""
    assert (engine.poisoned, engine.chats()) == (1, 1)
