import asyncio
import json
import socket
import sys
from pathlib import Path

import httpx
import pytest

from benchmarks.faults.cells import Load
from benchmarks.faults.doors import Door, EndedError, Fleet, Ports, Site, nginx, sidecars
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


def test_nginx_passes_a_failed_request_on(tmp_path: Path) -> None:
    nginx(Site(Ports(1), 8123, ["http://127.0.0.1:1"], tmp_path, "", ""))

    written = (tmp_path / "nginx.conf").read_text()

    assert "listen 127.0.0.1:8123" in written
    assert "http_500" in written
    assert "non_idempotent" in written
    assert "proxy_request_buffering off" not in written


def test_ports_are_free_and_none_is_handed_out_twice() -> None:
    first = Ports(1).take()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        ports = Ports(1)
        found = [ports.take() for _ in range(20)]

    assert first not in found
    assert len(set(found)) == 20
    assert max(found) < 32_768


async def test_a_door_that_ends_at_once_is_begun_twice_more_on_other_ports(tmp_path: Path) -> None:
    ports: list[int] = []

    def begin(site: Site) -> list[list[str]]:
        ports.append(site.port)
        return [[sys.executable, "-c", "raise SystemExit('port is taken')"]]

    fleet = Fleet(Door("d", True, begin), Site(Ports(1), 0, ["http://e"], tmp_path, "", ""))

    with pytest.raises(EndedError, match="port is taken"):
        await fleet.open()

    fleet.end()
    assert len(set(ports)) == 3


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
