"""A project of `docker-compose` from the repository's own files and images."""

import asyncio
import os
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

COMPOSE = Path(__file__).parents[3] / "deploy/compose"
IMAGES = {
    "KVMESH_IMAGE": "kvmesh:local",
    "NATS_IMAGE": "nats:local",
    "HAPROXY_IMAGE": "haproxy:local",
    "PROMETHEUS_IMAGE": "prometheus:local",
}


class Project:
    """One project of a file, of its own name; `variables` are those of the file."""

    def __init__(self, file: str, variables: Mapping[str, str]) -> None:
        self.name = f"kvmesh-test-{uuid.uuid4().hex[:8]}"
        self._file = file
        self._environment = os.environ | IMAGES | {"COMPOSE_PROJECT_NAME": self.name, **variables}
        for program in ("docker", "docker-compose"):
            if shutil.which(program) is None:
                pytest.skip(f"no {program} on this machine")
        services = yaml.safe_load((COMPOSE / file).read_text())["services"].values()
        named = "".join(one["image"] for one in services)
        for image in (one for variable, one in IMAGES.items() if variable in named):
            look = ["docker", "image", "inspect", image]
            if subprocess.run(look, capture_output=True, check=False).returncode:
                pytest.skip(f"no image {image}: deploy/docker/build-local.sh makes it")

    def run(self, *words: str | Path) -> str:
        done = subprocess.run(
            words, cwd=COMPOSE, env=self._environment, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def compose(self, *words: str) -> str:
        return self.run("docker-compose", "--file", self._file, *words)

    async def in_background(self, *words: str) -> None:
        await asyncio.to_thread(self.compose, *words)

    def ask(self, service: str, path: str) -> dict[str, Any]:
        """Return what a container answers itself: its port is not published."""
        read = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000{path}').read().decode())"
        answer: dict[str, Any] = yaml.safe_load(
            self.compose("exec", "-T", service, "python", "-c", read)
        )
        return answer
