"""Connecting, losing the connection and closing it, against real servers."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.errors import ConfigError, TransportError
from kvmesh.transport.nats.jetstream.api import JetStream
from kvmesh.transport.nats.jetstream.durability import check_durability, warn_of_one_copy
from kvmesh.transport.nats.jetstream.journal import JournalOptions, NatsJournal
from kvmesh.transport.nats.link.bus import NatsBus
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions
from tests.integration.nats.clients import connect, start_server

pytestmark = pytest.mark.integration


async def test_no_server_is_an_error_that_names_it_and_the_remedy(own_server: NatsServer) -> None:
    await own_server.stop()
    connection = NatsConnection(NatsOptions(url=own_server.url, first_connect_s=0.5))

    with pytest.raises(TransportError) as caught:
        await connection.connect()

    assert own_server.url in str(caught.value)
    assert (
        "refused" in str(caught.value).lower() or "connect call failed" in str(caught.value).lower()
    )
    assert "nats-server -js" in str(caught.value)


async def test_a_server_that_starts_a_little_later_is_waited_for(
    own_server: NatsServer, stack: contextlib.AsyncExitStack
) -> None:
    own_server.kill()
    attempt = asyncio.create_task(connect(stack, url=own_server.url))
    done, _ = await asyncio.wait({attempt}, timeout=0.3)
    assert not done

    await own_server.start()

    assert (await attempt).connected


async def test_the_second_server_of_a_list_is_used(
    nats_server: NatsServer, own_server: NatsServer, stack: contextlib.AsyncExitStack
) -> None:
    gone = own_server.url
    await own_server.stop()

    connection = await connect(stack, url=f"{gone}, {nats_server.url}")

    assert connection.connected


async def test_a_server_without_jetstream_is_told_apart(
    stack: contextlib.AsyncExitStack, tmp_path: Path, eventually: Any
) -> None:
    server = await start_server(stack, tmp_path, arguments=["-js=false"])
    options = JournalOptions(stream="EVENTS", subjects=("ev.*",))
    journal = NatsJournal(await connect(stack, url=server.url), options)

    with pytest.raises(TransportError, match="start nats-server with -js"):
        await journal.open()

    await journal.open(ensure=False)
    journal.append("ev.w1", b"x", lambda _: pytest.fail("nobody stores it"))
    await eventually(lambda: journal.statistics().homeless == 1)


async def test_listeners_hear_of_each_loss_and_return(
    own_server: NatsServer, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    connection = await connect(stack, url=own_server.url)
    changes: list[bool] = []
    forget = connection.on_change(changes.append)

    own_server.kill()
    await eventually(lambda: changes == [False])
    await own_server.start()
    await eventually(lambda: changes == [False, True])
    forget()
    forget()
    await connection.close()

    assert changes == [False, True]
    assert connection.statistics().reconnects == 1


async def test_nothing_queued_before_an_outage_arrives_after_it(
    own_server: NatsServer, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    connection = await connect(stack, url=own_server.url)
    other = await connect(stack, url=own_server.url)
    bus = NatsBus(connection)
    messages: list[bytes] = []
    await NatsBus(other).subscribe("hb", lambda _, data: messages.append(data))
    await eventually(lambda: other.statistics().connected)

    own_server.freeze()
    bus.publish("hb", b"before")
    own_server.kill()
    bus.publish("hb", b"meanwhile")
    await eventually(lambda: not connection.connected)
    bus.publish("hb", b"dropped")
    await own_server.start()
    await eventually(lambda: connection.connected and other.connected)
    await other.flush()
    bus.publish("hb", b"after")
    await eventually(lambda: messages)

    assert messages == [b"after"]
    assert bus.statistics().dropped >= 1


async def test_requests_wait_for_a_connection_that_comes_back(
    own_server: NatsServer, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    connection = await connect(stack, url=own_server.url)
    own_server.kill()
    await eventually(lambda: not connection.connected)

    with pytest.raises(TransportError, match="not connected in"):
        await connection.request("nobody", timeout_s=0.2)
    asking = asyncio.create_task(JetStream(connection).call("INFO", None, dict[str, Any]))
    await own_server.start()

    assert "memory" in await asking


async def test_nobody_listening_is_an_error_at_once(
    nats_server: NatsServer, stack: contextlib.AsyncExitStack
) -> None:
    connection = await connect(stack, url=nats_server.url)

    with pytest.raises(TransportError, match="no responders"):
        await connection.request("nobody.at.all", timeout_s=60)


async def test_no_answer_is_an_error_in_time(
    nats_server: NatsServer, stack: contextlib.AsyncExitStack
) -> None:
    connection = await connect(stack, url=nats_server.url)
    await NatsBus(connection).subscribe("silent", lambda *_: None)

    with pytest.raises(TransportError, match=r"no answer in 0\.2 s"):
        await connection.request("silent", timeout_s=0.2)


async def test_a_closed_connection_refuses_and_may_be_closed_again(
    nats_server: NatsServer, stack: contextlib.AsyncExitStack
) -> None:
    connection = await connect(stack, url=nats_server.url)
    bus = NatsBus(connection)
    subscription = await bus.subscribe("x", lambda *_: None)

    await connection.close()
    await connection.close()
    bus.publish("x", b"")
    await subscription.close()

    assert bus.statistics().dropped == 1
    with pytest.raises(TransportError):
        await connection.request("x", timeout_s=0.1)


async def test_close_sends_what_is_queued(
    nats_server: NatsServer, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    connection = await connect(stack, url=nats_server.url)
    sizes: list[int] = []
    bus = NatsBus(await connect(stack, url=nats_server.url))
    await bus.subscribe("last.words", lambda _, data: sizes.append(len(data)))

    for _ in range(20):
        NatsBus(connection).publish("last.words", bytes(500_000))
    await connection.close()
    await eventually(lambda: len(sizes) == 20)


async def test_flush_is_answered_after_what_was_queued(
    nats_server: NatsServer, stack: contextlib.AsyncExitStack
) -> None:
    connection = await connect(stack, url=nats_server.url)
    seen: list[int] = []
    await NatsBus(connection).subscribe("echo", lambda _, data: seen.append(len(data)))

    for _ in range(20):
        NatsBus(connection).publish("echo", bytes(500_000))
    assert await connection.flush()

    assert len(seen) == 20


async def test_a_listeners_bug_does_not_end_the_connection(
    nats_server: NatsServer, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    contexts: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: contexts.append(context))
    bus = NatsBus(await connect(stack, url=nats_server.url))
    messages: list[bytes] = []

    def broken(_: str, data: bytes) -> None:
        messages.append(data)
        raise ValueError("a bug")

    await bus.subscribe("bug", broken)
    bus.publish("bug", b"1")
    bus.publish("bug", b"2")
    await eventually(lambda: len(messages) == 2)

    assert [str(context["exception"]) for context in contexts] == ["a bug", "a bug"]


async def test_an_error_of_the_server_does_not_end_the_connection(
    stack: contextlib.AsyncExitStack, tmp_path: Path, eventually: Any
) -> None:
    server = await start_server(stack, tmp_path, config="max_subscriptions: 6")
    connection = await connect(stack, url=server.url)
    received: list[bytes] = []
    await connection.client.listen("first", lambda _, __, data, ___: received.append(data))

    for number in range(10):
        await connection.client.listen(f"too.many.{number}", lambda *_: None)
    await eventually(lambda: connection.statistics().errors, what="the server's refusal")
    connection.client.publish_nowait("first", b"still here")
    await eventually(lambda: received == [b"still here"])

    assert connection.connected
    assert connection.statistics().reconnects == 0


async def test_durability_is_read_from_the_monitoring_port(
    stack: contextlib.AsyncExitStack, tmp_path: Path, own_server: NatsServer
) -> None:
    careful = await start_server(stack, tmp_path, config="jetstream { sync_interval: always }")
    silent = "http://127.0.0.1:9"

    synced = await connect(stack, url=careful.url)
    unsynced = await connect(stack, url=own_server.url)

    assert await check_durability(synced, careful.monitoring_url) == "always"
    assert await check_durability(unsynced, own_server.monitoring_url) == "interval"
    assert await check_durability(unsynced, careful.monitoring_url) == "unknown"
    assert await check_durability(unsynced, own_server.monitoring_url + "x") == "unknown"
    assert await check_durability(unsynced, silent) == "unknown"
    assert not warn_of_one_copy(unsynced, 1)


async def test_a_server_whose_messages_are_too_short_is_refused_at_the_start(
    stack: contextlib.AsyncExitStack, tmp_path: Path
) -> None:
    server = await start_server(stack, tmp_path, config="max_payload: 65536")

    with pytest.raises(ConfigError, match="max_payload to 524288"):
        await connect(stack, url=server.url)
