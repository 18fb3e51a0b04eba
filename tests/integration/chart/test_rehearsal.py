"""A release whose containers run: what the chart renders serves, with the keys of the script."""

import asyncio
import os
import shutil
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.integration.chart.kubelet import Release, read_secrets
from tests.integration.chart.rendering import Values, pods, render
from tests.integration.support.live_router import free_port

pytestmark = pytest.mark.integration
SCRIPT = Path(__file__).parents[3] / "deploy/k8s/make-secrets.sh"


def values() -> Values:
    # The publisher's sockets are bound at all addresses.
    events = {"port": free_port(), "replayPort": free_port()}
    return {
        "buckets": {"chat": {"replicas": 1}},
        "engines": {"sim": {"kind": "mocker", "kvEvents": events}},
        "nats": {"exporter": {"enabled": False}},
    }


async def test_every_pod_of_a_release_gets_ready_and_the_chart_s_test_passes(
    tmp_path: Path,
) -> None:
    if shutil.which("kubectl") is None or shutil.which("nats-server") is None:
        pytest.skip("no kubectl or no nats-server on this machine")
    launcher = tmp_path / "kvmesh"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvmesh "$@"\n')
    launcher.chmod(0o755)
    made = await asyncio.create_subprocess_exec(
        *(SCRIPT, tmp_path / "keys", "1", "kvmesh", "chat"),
        env={"KVMESH": str(launcher), "PATH": os.environ["PATH"], "PREFIX": "kvmesh-"},
        stdout=asyncio.subprocess.PIPE,
    )
    secrets, _ = await made.communicate()
    assert made.returncode == 0
    manifests = render(values())
    release = Release(manifests, read_secrets(secrets), tmp_path)
    names = [name for name, _ in pods(manifests)]
    [streams] = [name for name in names if "streams" in name]
    served = [
        *("StatefulSet/kvmesh-nats", "Deployment/kvmesh-sim"),
        *("Deployment/kvmesh-router-chat", "Deployment/kvmesh-meta-router"),
    ]
    assert {*names} == {*served, streams, "Pod/kvmesh-test"}

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(release.running(served[0]))
        assert await release.run(streams) == 0
        for name in served[1:]:
            await stack.enter_async_context(release.running(name))
        passed = await release.run("Pod/kvmesh-test")

    said = (tmp_path / "Pod-kvmesh-test-request.log").read_text()
    assert passed == 0, said
    assert said.startswith("mock answered ")
