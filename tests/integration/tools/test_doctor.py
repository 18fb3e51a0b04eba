"""`kvmesh doctor` against pretend engines that are well, and that are not."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kvmesh.app.ops.doctor import DoctorSettings, examine
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.app.router.command import RouterServer
from kvmesh.app.worker.command import Sidecar
from kvmesh.core.engines.seen import Finding, Level
from kvmesh.errors import ConfigError
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.roles import CostSettings, NatsSettings, RouterSettings, WorkerSettings
from kvmesh.transport.http.server.server import HttpServer
from kvmesh_lab.mocker.command import Mocker
from tests.integration.support.live_router import mockers, running
from tests.unit.app.prompts.tokenizer_models import write_model

pytestmark = pytest.mark.integration


@asynccontextmanager
async def engine(**changes: Any) -> AsyncIterator[Mocker]:
    async with mockers(**{"num_gpu_blocks_override": 512} | changes) as (mocker,):
        yield mocker


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@asynccontextmanager
async def router(nats: NatsServer, namespace: str, **cost: Any) -> AsyncIterator[str]:
    port = free_port()
    server = RouterServer(
        RouterSettings(
            router_id="r",
            cost=CostSettings(**cost),
            http=HttpSettings(http_port=port, drain_s=0.0),
            nats=NatsSettings(nats_url=nats.url, namespace=namespace),
        )
    )
    async with running(server.serve):
        await until_open(port)
        yield f"http://127.0.0.1:{port}"


async def until_open(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            writer.close()
            return


def sidecar(mocker: Mocker, nats: NatsServer, namespace: str) -> Sidecar:
    return Sidecar(
        WorkerSettings(
            engine_url=mocker.url,
            worker_id="w",
            nats=NatsSettings(nats_url=nats.url, namespace=namespace),
        )
    )


def levels(findings: list[Finding]) -> dict[str, Level]:
    return {finding.topic: finding.level for finding in findings}


def failed(findings: list[Finding]) -> dict[str, str]:
    return {one.topic: one.text for one in findings if one.level is Level.FAIL}


async def test_a_url_that_ends_in_v1_is_understood() -> None:
    async with engine() as mocker:
        plain = await examine(DoctorSettings(engine_url=mocker.url, probe=False))
        ours = await examine(DoctorSettings(engine_url=f"{mocker.url}/v1/", probe=False))

    assert ours == plain
    assert not failed(ours)


async def test_a_healthy_engine_and_its_own_tokenizer_are_all_right(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    async with engine(tokenizer=model) as mocker:
        settings = DoctorSettings(engine_url=mocker.url, tokenizer=Path(model))
        findings = await examine(settings)

    assert {finding.level for finding in findings} == {Level.OK}
    assert {"events of rank 0", "reuse", "tokenizer", "block size"} <= set(levels(findings))


async def test_events_that_are_off_are_said_to_be_off() -> None:
    async with engine(enable_kv_cache_events=False) as mocker:
        findings = await examine(DoctorSettings(engine_url=mocker.url))

    assert failed(findings) == {"KV events": "are off"}


async def test_prefix_caching_that_is_off_shows_in_word_and_deed() -> None:
    async with engine(enable_prefix_caching=False) as mocker:
        findings = await examine(DoctorSettings(engine_url=mocker.url))

    assert {"prefix caching", "reuse"} <= set(failed(findings))


async def test_another_tokenizer_than_the_engines_is_found(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    async with engine() as mocker:
        settings = DoctorSettings(engine_url=mocker.url, tokenizer=Path(model))
        findings = await examine(settings)

    assert "differs from the engine's ids at position" in failed(findings)["tokenizer"]


async def test_an_endpoint_where_nobody_publishes_is_named() -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    replay = f"tcp://127.0.0.1:{free_port()}"
    async with engine() as mocker:
        findings = await examine(
            DoctorSettings(
                engine_url=mocker.url,
                kv_events_endpoint=endpoint,
                kv_replay_endpoint=replay,
                probe=False,
            )
        )

    texts = [finding.text for finding in findings if finding.level is Level.FAIL]
    assert texts == [
        f"nothing answers at {endpoint}",
        f"nothing answers at the replay socket {replay}",
    ]


async def test_replay_given_right_behind_events_collides_with_the_next_rank() -> None:
    port = free_port()
    async with engine(data_parallel_size=2) as mocker:
        findings = await examine(
            DoctorSettings(
                engine_url=mocker.url,
                kv_events_endpoint=f"tcp://127.0.0.1:{port}",
                kv_replay_endpoint=f"tcp://127.0.0.1:{port + 1}",
                probe=False,
            )
        )

    words = f"port {port + 1} is used by rank 0 replay and rank 1 events"
    assert failed(findings)["event ports"] == words


async def test_ranks_are_listened_to_one_by_one() -> None:
    async with engine(data_parallel_size=2) as mocker:
        findings = await examine(DoctorSettings(engine_url=mocker.url))

    assert {"events of rank 0", "events of rank 1"} <= set(levels(findings))
    assert not failed(findings)


async def test_an_engine_that_is_not_there_is_said_to_be_not_there() -> None:
    url = f"http://127.0.0.1:{free_port()}"

    findings = await examine(DoctorSettings(engine_url=url))

    assert failed(findings) == {"engine": f"{url} does not answer /v1/models"}


async def test_an_openai_server_of_no_known_kind_is_told_to_be_served_approximately() -> None:
    models = b'{"data":[{"id":"m"}]}'
    server = HttpServer(
        lambda exchange: exchange.respond(
            200 if exchange.request.path == "/v1/models" else 404, models
        )
    )
    await server.start("127.0.0.1", 0)
    try:
        findings = await examine(DoctorSettings(engine_url=f"http://127.0.0.1:{server.port}"))
    finally:
        await server.drain(0)

    by_topic = levels(findings)
    assert by_topic["engine"] is Level.WARN
    assert by_topic["probe"] is Level.WARN
    assert by_topic["KV events"] is Level.FAIL


async def test_a_url_without_a_scheme_is_refused() -> None:
    with pytest.raises(ConfigError, match="--router-url 'localhost:1'"):
        await examine(DoctorSettings(engine_url="http://h:1", router_url="localhost:1"))


async def test_the_way_from_engine_to_index_is_tried(
    nats_server: NatsServer, namespace: str
) -> None:
    async with (
        engine() as mocker,
        router(nats_server, namespace) as url,
        running(sidecar(mocker, nats_server, namespace).serve),
    ):
        settings = DoctorSettings(engine_url=mocker.url, router_url=url)
        # Sidecar and router need a moment to find each other.
        async with asyncio.timeout(60):
            while failed(findings := await examine(settings)):  # noqa: ASYNC110  see above
                await asyncio.sleep(0.1)

    by_topic = levels(findings)
    assert by_topic["end to end"] is Level.OK
    assert by_topic["worker w"] is Level.OK
    assert by_topic["router block size"] is Level.OK


async def test_a_router_of_another_block_size_and_no_sidecar_are_found(
    nats_server: NatsServer, namespace: str
) -> None:
    async with (
        engine(block_size=32) as mocker,
        router(nats_server, namespace, kv_cache_block_size=16, router_mode="random") as url,
    ):
        findings = await examine(DoctorSettings(engine_url=mocker.url, router_url=url))

    assert {"router block size", "sidecar", "router mode"} <= set(failed(findings))


async def test_an_engine_is_no_router() -> None:
    async with engine() as mocker:
        settings = DoctorSettings(engine_url=mocker.url, router_url=mocker.url, probe=False)
        findings = await examine(settings)

    assert "router" in failed(findings)


@pytest.mark.parametrize(("on", "code"), [(True, 0), (False, 1)])
async def test_the_command_prints_a_line_each_and_exits_1_on_a_failure(on: bool, code: int) -> None:
    async with engine(enable_kv_cache_events=on) as mocker:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "kvmesh", "doctor", "--engine-url", mocker.url],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert done.returncode == code, done.stdout + done.stderr
    assert ("FAIL  KV events: are off -> start the engine" in done.stdout) is not on
    assert "OK    models: mock" in done.stdout
