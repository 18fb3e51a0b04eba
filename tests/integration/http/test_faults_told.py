"""What a client is told when an upstream fails: its name, never where it is."""

import re

import pytest

from kvmesh.transport.http.forward.plan import Target
from kvmesh.transport.http.upstream.client import UpstreamOptions
from tests.integration.http.peers import Front, Turn, Upstream
from tests.integration.http.proxied import Proxy
from tests.integration.support.live_router import free_port
from tests.unit.transport.http.malformed import post

pytestmark = pytest.mark.integration

ADDRESS = re.compile(r"127\.0\.0\.1|localhost|\.invalid|https?:|ftp:|errno|/tmp/", re.IGNORECASE)


async def close_at_once(turn: Turn) -> None:
    turn.close()


async def say_nothing(turn: Turn) -> None:
    del turn


async def say_what_is_no_http(turn: Turn) -> None:
    turn.send(b"SSH-2.0-x\r\n\r\n")


@pytest.mark.parametrize("fault", ["refused", "dns", "tls", "reset", "hang", "malformed", "url"])
async def test_each_kind_of_fault_is_told_without_an_address(
    fronts: Front, upstream: Upstream, fault: str
) -> None:
    scripts = {"reset": close_at_once, "hang": say_nothing, "malformed": say_what_is_no_http}
    upstream.script = scripts.get(fault, close_at_once)
    where = {
        "refused": f"http://127.0.0.1:{free_port()}",
        "dns": "http://engine.invalid:8000",
        "tls": upstream.origin.replace("http:", "https:"),
        "url": "ftp://127.0.0.1:1/x",
    }
    proxy = Proxy(upstream)
    limits = UpstreamOptions(first_byte_timeout_s=0.2, connect_timeout_s=5.0)
    await proxy.start(fronts, upstreams=limits)
    plan = proxy.plan(Target(where.get(fault, upstream.origin), worker="w0"))
    client = await fronts.connect(proxy.server)

    got = await client.ask(post(b"Content-Length: 4", body=b"body"))

    await proxy.pool.close()
    said = got.body.decode()
    assert got.status in {502, 504}
    assert "w0 " in said
    assert not ADDRESS.search(said), said
    (failure,) = plan.failures
    assert failure.origin in failure.message, "operators are told where"
