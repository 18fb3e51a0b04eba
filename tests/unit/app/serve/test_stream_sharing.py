"""Two routers that tell each other of streams which clients named."""

import asyncio

import pytest

from kvmesh.app.serve.stream_sharing import TELL_EVERY_S, StreamSharing
from kvmesh.core.chat.named_streams import NamedStream
from kvmesh.core.engines.event_stream import new_event_stream
from kvmesh.errors import RequestError
from kvmesh.transport.http.forward.plan import NO_HOLD
from kvmesh.transport.http.forward.resume import Resumption, StreamKeep
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.wire.headers import Headers
from tests.conftest import Eventually
from tests.unit.transport.http.forward.told_events import BODY, Asked, chunk

KEY = "ann", "mine"
FIRST = chunk("a", 4, prompt=[1, 2, 3])
MARKED = BODY.replace(b"{", b'{"return_token_ids":true,', 1)


class Client(Asked):
    """A client's exchange, which may be broken off."""

    def __init__(self, body: bytes = BODY, headers: Headers = ()) -> None:
        super().__init__(body)
        self.request = Request("POST", b"/v1/chat/completions", headers, body)

    def abort(self) -> None:
        self.ended = True
        self.scope.end()


class Bus:
    """What two routers say to each other."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.routers = [self._router("r0"), self._router("r1")]

    def _router(self, name: str) -> StreamSharing:
        sharing = StreamSharing(StreamKeep(1 << 20).named, name, "X-Kvmesh-Tenant")

        def publish(message: bytes) -> None:
            self.sent.append(message)
            for one in self.routers:
                one.hear(f"kvmesh.str.default.{name}", message)

        sharing.publish = publish
        return sharing


def streaming(client: Client) -> Resumption:
    """Return what keeps a stream."""
    resumption = StreamKeep(1 << 20).begin(client.request, "chat")
    assert resumption is not None
    resumption.sent(None, BODY, "http://w1", True)
    return resumption


def passed(resumption: Resumption, *events: bytes) -> None:
    stream = new_event_stream()
    resumption.watch(stream)
    for one in events:
        stream.feed(one)
    resumption.opened(events[0], "http://w1")


def known(sharing: StreamSharing) -> NamedStream:
    found = sharing.find(KEY)
    assert found is not None
    return found


async def test_a_sibling_hears_of_a_stream_while_it_passes_and_of_its_end(
    eventually: Eventually,
) -> None:
    bus, client = Bus(), Client()
    resumption = streaming(client)
    first, second = bus.routers
    first.begin(client, resumption, KEY)
    assert second.find(KEY) is None

    passed(resumption, FIRST, chunk("b", 5))
    await eventually(lambda: second.find(KEY) is not None)

    assert known(second).kept() == known(first).kept()
    assert (known(second).events(), known(second).head.body) == (2, BODY)
    assert b'"id":"chatcmpl-1"' in known(second).head.opening.replace(b" ", b"")
    sent = len(bus.sent)
    await asyncio.sleep(3 * TELL_EVERY_S)
    assert len(bus.sent) == sent
    client.scope.end()
    assert (known(second).over, first.told_bytes) == (True, sum(map(len, bus.sent)))
    assert second.told_bytes == 0


async def test_who_takes_a_stream_ends_it_where_it_is_served() -> None:
    bus, client = Bus(), Client()
    resumption = streaming(client)
    first, second = bus.routers
    first.begin(client, resumption, KEY)
    passed(resumption, FIRST)
    first.find(KEY)
    passed_on = known(second)

    second.take(KEY, passed_on)

    assert (client.ended, client.scope.kind) == (True, "client_gone")
    assert (known(second).over, first.end(KEY)) == (True, False)
    second.take(KEY, known(second))
    assert len(bus.sent) == 3


async def test_a_stream_of_the_same_name_ends_the_one_before_at_any_router() -> None:
    bus, clients = Bus(), [Client() for _ in range(3)]
    first, second = bus.routers
    for client, sharing in zip(clients, (first, first, second), strict=True):
        resumption = streaming(client)
        sharing.begin(client, resumption, KEY)
        passed(resumption, FIRST)
        sharing.find(KEY)

    assert [one.ended for one in clients] == [True, True, False]
    assert not known(first).over


async def test_of_a_stream_that_cannot_go_on_its_name_is_told_and_why() -> None:
    bus, client = Bus(), Client(BODY.replace(b'"temperature":0', b'"n":2'))
    resumption = streaming(client)
    bus.routers[0].begin(client, resumption, KEY)
    for _ in range(2):
        bus.routers[0].find(KEY)

    assert known(bus.routers[1]).head.why == "n above 1"
    assert len(bus.sent) == 1
    client.scope.end()
    assert known(bus.routers[1]).over


async def test_what_a_meta_router_asked_for_is_not_its_clients_wish() -> None:
    bus, client = Bus(), Client(MARKED, (NO_HOLD,))
    resumption = streaming(client)
    bus.routers[0].begin(client, resumption, KEY)
    passed(resumption, FIRST)

    assert known(bus.routers[0]).head.body == BODY


async def test_a_request_that_is_over_and_one_without_an_answer_are_not_told() -> None:
    bus, over, unanswered = Bus(), Client(), Client()
    over.scope.end()
    for client in (over, unanswered):
        bus.routers[0].begin(client, streaming(client), KEY)
    unanswered.scope.end()

    assert (bus.routers[0].find(KEY), bus.sent) == (None, [])


def test_messages_of_no_sense_are_counted() -> None:
    first, second = Bus().routers

    for _ in range(2):
        first.hear("kvmesh.str.default.r1", b"no message")
    first.hear("kvmesh.str.default.r0", b"its own")

    assert (first.table.missed, second.table.missed) == (2, 0)


def test_whose_stream_it_is_says_the_tenant() -> None:
    sharing = Bus().routers[0]
    tenant = (b"x-kvmesh-tenant", b"ann")

    assert sharing.key_of(Client(headers=(tenant,)).request, "mine") == KEY
    assert sharing.key_of(Client().request, "mine") == ("", "mine")
    with pytest.raises(RequestError, match="2 headers"):
        sharing.key_of(Client(headers=(tenant, tenant)).request, "mine")


async def test_without_siblings_a_router_keeps_its_own() -> None:
    sharing = StreamSharing(StreamKeep(1 << 20).named, "r0", "")
    client = Client()
    resumption = streaming(client)
    sharing.begin(client, resumption, KEY)
    passed(resumption, FIRST)

    assert known(sharing).events() == 1
    assert sharing.told_bytes == 0
