"""Runs a release's pods as processes of this machine, each at a loopback address of its own.

What a cluster would do for a manifest is done here as far as it matters to the processes: mounts,
variables, names of Services, probes. Images are what this machine has of them.
"""

import asyncio
import base64
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from tests.integration.chart.rendering import Manifest, named, pods

READY_S: Final = 60.0
VARIABLE: Final = re.compile(r"\$\((\w+)\)")


class Release:
    """The pods of some manifests, with the Secrets they mount; `directory` is for their files."""

    def __init__(
        self, manifests: Sequence[Manifest], secrets: Mapping[str, Manifest], directory: Path
    ) -> None:
        self._manifests = list(manifests)
        self._secrets = secrets
        self._directory = directory
        self._network = f"127.{1 + os.getpid() // 250 % 250}.{1 + os.getpid() % 250}"
        self._addresses = {
            name: f"{self._network}.{number}"
            for number, (name, _) in enumerate(pods(self._manifests), 2)
        }

    def address_of(self, service: str) -> str:
        """Return the address of a pod that a Service selects."""
        wanted = named(self._manifests, "Service")[service]["spec"]["selector"].items()
        return next(
            self._addresses[name]
            for name, template in pods(self._manifests)
            if wanted <= template["metadata"]["labels"].items()
        )

    def url_of(self, service: str, port: int) -> str:
        """Return the URL of a Service's port at a pod behind it."""
        [target] = [
            one["targetPort"]
            for one in named(self._manifests, "Service")[service]["spec"]["ports"]
            if one["port"] == port
        ]
        numbers = {
            one["name"]: one["containerPort"]
            for name, template in pods(self._manifests)
            if self._addresses[name] == self.address_of(service)
            for container in template["spec"]["containers"]
            for one in container.get("ports", ())
        }
        return f"http://{self.address_of(service)}:{numbers[target]}"

    @asynccontextmanager
    async def running(self, name: str) -> AsyncIterator[None]:
        """Run the containers of a pod until the block ends; when it begins, they are ready."""
        template = dict(pods(self._manifests))[name]
        running = [await self._start(name, template, one) for one in template["spec"]["containers"]]
        try:
            for one in template["spec"]["containers"]:
                await self._wait_until_ready(name, one)
            yield
        finally:
            for process in running:
                if process.returncode is None:
                    process.terminate()
            for process in running:
                await asyncio.wait_for(process.wait(), READY_S)

    async def run(self, name: str) -> int:
        """Run a pod's only container to its end and return its exit code."""
        template = dict(pods(self._manifests))[name]
        [one] = template["spec"]["containers"]
        process = await self._start(name, template, one)
        return await asyncio.wait_for(process.wait(), READY_S)

    async def _start(
        self, name: str, template: Manifest, one: Manifest
    ) -> asyncio.subprocess.Process:
        mounts = self._mounts(name, template, one)
        variables = self._variables(name, one, mounts)
        command = [self._local(word, name, mounts) for word in one.get("command", ())]
        words = [self._local(word, name, mounts) for word in one.get("args", ())]
        words = [VARIABLE.sub(lambda found: variables[found[1]], word) for word in words]
        if "nats" in one["image"]:
            program = shutil.which("nats-server")
            assert program is not None
            command = [program]
        elif command[:1] == ["python3"]:
            command[0] = sys.executable
        else:
            command = [sys.executable, "-m", "kvmesh"]
        log = (self._directory / f"{name.replace('/', '-')}-{one['name']}.log").open("wb")
        with log:
            return await asyncio.create_subprocess_exec(
                *command,
                *words,
                env={"PATH": os.environ["PATH"], **variables},
                stdout=log,
                stderr=log,
            )

    def _variables(self, name: str, one: Manifest, mounts: Mapping[str, Path]) -> dict[str, str]:
        found: dict[str, str] = {}
        for source in one.get("envFrom", ()):
            found |= named(self._manifests, "ConfigMap")[source["configMapRef"]["name"]]["data"]
        for entry in one.get("env", ()):
            if "value" in entry:
                found[entry["name"]] = VARIABLE.sub(lambda at: found[at[1]], entry["value"])
            else:
                field = entry["valueFrom"]["fieldRef"]["fieldPath"]
                pod = {"metadata.name": name.rpartition("/")[2], "metadata.namespace": "kvmesh"}
                found[entry["name"]] = pod.get(field, self._addresses[name])
        return {key: self._local(value, name, mounts) for key, value in found.items()}

    def _mounts(self, name: str, template: Manifest, one: Manifest) -> dict[str, Path]:
        volumes = {volume["name"]: volume for volume in template["spec"].get("volumes", ())}
        made: dict[str, Path] = {}
        for mount in one.get("volumeMounts", ()):
            place = self._directory / name.replace("/", "-") / mount["name"]
            place.mkdir(parents=True, exist_ok=True)
            made[mount["mountPath"]] = place
        for mount in one.get("volumeMounts", ()):
            for file, content in self._content(volumes.get(mount["name"], {})).items():
                text = self._local(content.decode(), name, made)
                (made[mount["mountPath"]] / file).write_text(text)
        return made

    def _content(self, volume: Manifest) -> dict[str, bytes]:
        if "secret" in volume:
            data = self._secrets[volume["secret"]["secretName"]]["data"]
            files = {key: base64.b64decode(value) for key, value in data.items()}
            items = volume["secret"].get("items")
            if items is None:
                return files
            return {item["path"]: files[item["key"]] for item in items}
        if "configMap" in volume:
            data = named(self._manifests, "ConfigMap")[volume["configMap"]["name"]]["data"]
            return {key: value.encode() for key, value in data.items()}
        return {}

    def _local(self, text: str, name: str, mounts: Mapping[str, Path]) -> str:
        """Return a text with paths, Services and addresses as they are on this machine."""
        for mount, place in sorted(mounts.items(), key=lambda one: -len(one[0])):
            text = re.sub(rf"(?<![\w/]){re.escape(mount)}(?![\w-])", str(place), text)
        for service in named(self._manifests, "Service"):
            for port in re.findall(rf"http://{service}:(\d+)", text):
                text = text.replace(f"http://{service}:{port}", self.url_of(service, int(port)))
            text = text.replace(f"://{service}:", f"://{self.address_of(service)}:")
        return text.replace("0.0.0.0", self._addresses[name]).replace(
            "127.0.0.1", self._addresses[name]
        )

    async def _wait_until_ready(self, name: str, one: Manifest) -> None:
        for kind in ("startupProbe", "readinessProbe"):
            if kind not in one:
                continue
            probe = one[kind]["httpGet"]
            ports = {port["name"]: port["containerPort"] for port in one["ports"]}
            url = f"http://{self._addresses[name]}:{ports[probe['port']]}{probe['path']}"
            await self._wait_for(url, f"{name} {one['name']} {kind}")

    async def _wait_for(self, url: str, what: str) -> None:
        last = ""
        end = asyncio.get_running_loop().time() + READY_S
        async with httpx.AsyncClient(timeout=5) as client:
            while asyncio.get_running_loop().time() < end:
                try:
                    answer = await client.get(url)
                except httpx.TransportError as error:
                    last = repr(error)
                else:
                    if answer.is_success:
                        return
                    last = f"{answer.status_code} {answer.text[:300]}"
                await asyncio.sleep(0.1)
        logs = "".join(one.read_text()[-1500:] for one in self._directory.glob("*.log"))
        raise TimeoutError(f"{what}: {url}: {last}\n{logs}")


def read_secrets(text: str | bytes) -> dict[str, Any]:
    """Return Secrets by name."""
    return {one["metadata"]["name"]: one for one in yaml.safe_load_all(text) if one}
