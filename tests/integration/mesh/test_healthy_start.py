"""What processes say of a start that nothing is wrong with: no warning."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.transport.http.wire.sockets import raise_open_files_limit
from tests.chaos.process import fixed_ports
from tests.integration.support.small_mesh import SmallMesh, answer_with, door, running

pytestmark = pytest.mark.integration

TROUBLE = re.compile(r"\[(?:\x1b\[[0-9;]*m)*(?:warning|error) *")
FEW_FILES = "raise the limit of open files"


@pytest.mark.skipif(raise_open_files_limit() < 5000, reason="few open files are worth a warning")
async def test_a_mesh_and_a_router_alone_start_without_a_warning(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "store")
    await server.start()
    mesh = SmallMesh(tmp_path, server.url)
    port = fixed_ports(1)[0]
    alone = mesh.process("alone", port, "router", *door(port), "--worker", mesh.engine.url)
    try:
        async with running(mesh.engine) as client:
            await answer_with(client, mesh.engine, "/health", 200)
            async with running(mesh.router, mesh.front, mesh.sidecar, alone):
                for place in (mesh.router, mesh.front, alone):
                    await answer_with(client, place, "/ready", 200)
                said = {one.name: mesh.said(one) for one in (*mesh.all(), alone)}
    finally:
        await server.stop()

    assert [text for text in said.values() if TROUBLE.search(text)] == []


def test_a_limit_of_few_open_files_is_warned_of() -> None:
    router = f"{sys.executable} -m kvmesh router --http-port 0 --worker http://127.0.0.1:1"
    process = subprocess.Popen(
        ["/bin/sh", "-c", f"ulimit -n 1000; exec {router}"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        warned = next(line for line in process.stderr if '"warning"' in line)
    finally:
        process.kill()
        process.communicate()

    assert FEW_FILES in warned
