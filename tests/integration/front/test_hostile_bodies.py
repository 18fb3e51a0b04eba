"""Bodies meant to keep a router busy or full, sent to real routers."""

import time
from pathlib import Path

import httpx
import pytest

from benchmarks.hostile.bench_hostile import resident, send, served, storms
from benchmarks.hostile.cases import CASES, request_of
from kvmesh.app.front.api_key import ApiKeyOptions, add_key
from kvmesh.app.router.command import RouterServer
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.roles import RouterSettings
from kvmesh.transport.http.server.limits import COUNT_ABOVE
from tests.integration.http.peers import Client
from tests.integration.support.live_router import free_port, serving
from tests.unit.transport.http.malformed import post

pytestmark = pytest.mark.integration

LONGEST_TURN_S = 0.05
"""Processor time between two turns of a router's event loop: what else the machine does is not in
it, but caches shared with others are. The slowest case here takes a third of it."""

WORST = {
    "router": ("1M messages", "64 MB of CJK", "10M token ids", "1M prompts of one id"),
    "meta-router": ("1M messages", "64 MB of CJK", "1M token ids"),
}


@pytest.mark.parametrize("role", ["router", pytest.param("meta-router", marks=pytest.mark.chaos)])
def test_no_body_stops_the_event_loop(role: str) -> None:
    with served(role, []) as (started, watch):
        send(started.port, request_of(CASES[0]))
        for case in CASES:
            if case.name not in WORST[role]:
                continue
            data = request_of(case)
            turns: list[float] = []
            for _ in range(3):  # what a neighbour's caches add is not the router's
                watch.worst_s()
                assert send(started.port, data) in {200, 413}
                time.sleep(0.05)
                turns.append(watch.worst_s())
                if turns[-1] < LONGEST_TURN_S:
                    break
            assert min(turns) < LONGEST_TURN_S, case.name


def test_memory_is_given_back_after_a_storm_of_bad_bodies() -> None:
    with served("router", []) as (started, _):
        for act in storms().values():
            act(started.port, 1)
        send(started.port, request_of(CASES[0]))
        time.sleep(2.5)
        before = resident(started)

        for kind, act in storms().items():
            if not kind.startswith("200"):
                act(started.port, 4)

        deadline = time.monotonic() + 15.0
        while (after := resident(started)) > 1.1 * before and time.monotonic() < deadline:
            time.sleep(0.2)
        assert after <= 1.1 * before


async def test_without_a_known_key_a_large_body_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    key = add_key(ApiKeyOptions(name="alice", file=file))
    port = free_port()
    settings = RouterSettings(
        kv_events=False,
        worker=(f"w0=http://127.0.0.1:{free_port()}",),
        http=HttpSettings(http_port=port, api_keys=file),
    )
    async with serving(RouterServer(settings).serve, f"http://127.0.0.1:{port}", path="/health"):
        for line in (b"Content-Length: 60000000", b"Transfer-Encoding: chunked"):
            client = await Client.connect(port)
            client.send(post(line))

            answer = await client.answer()

            assert answer.status == 401
            assert answer.headers[b"www-authenticate"].startswith(b"Bearer")
            assert b"Authorization" in answer.body
            client.writer.close()

        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as known:
            body = b'{"model":"m","prompt":"%b"}' % (b"x" * 2 * COUNT_ABOVE)
            reported = await known.post(
                "/v1/completions", content=body, headers={"authorization": f"Bearer {key}"}
            )
            assert reported.status_code in {502, 503}  # the worker is not there


async def test_a_body_that_does_not_fit_names_what_to_raise() -> None:
    with served("router", ["--max-body-bytes", "2000000"]) as one:
        started, _ = one
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{started.port}") as client:
            large = await client.post("/v1/completions", content=b"x" * 2_000_001)
            many = await client.post(
                "/v1/completions", content=b'{"model": "m", "prompt": [%b[]]}' % (b"[]," * 300_000)
            )

    assert (large.status_code, many.status_code) == (413, 413)
    assert "2000000 bytes" in large.json()["error"]["message"]
    assert "262144 values" in many.json()["error"]["message"]
