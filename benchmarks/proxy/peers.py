"""The proxies a benchmark compares, as commands; those not installed say why they are left out."""

import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from benchmarks.proxy.load import PATH, chat_body
from tests.unit.app.prompts.tokenizer_models import write_model

START_S: Final = 30.0
PEERS: Final = "KVMESH_BENCH_PEERS"
"""Environment variable: a folder of executables, e.g. the bin of a venv with the peers' wheels."""

STACK: Final = "KVMESH_BENCH_PRODUCTION_STACK"
"""Environment variable: the Python of an environment where production-stack's `src` is importable
as `vllm_router` (with fastapi, aiohttp, uhashring, … installed): it is not on the index of
packages."""


MODEL: Final = "KVMESH_BENCH_MODEL"
"""Environment variable: the folder of a real model's tokenizer."""

BASELINE: Final = "vllm-router 0.1.17 rr"
"""What ratios are to, where it is installed."""


class Peer(NamedTuple):
    """A proxy: `command(port, worker URLs, a folder of its own)`, or why it is left out; `key` is
    what it asks clients for.
    """

    name: str
    command: Callable[[int, Sequence[str], Path], list[str]] | None
    missing: str = ""
    key: str = ""


def free_port() -> int:
    """Return a port nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def find(executable: str) -> str | None:
    """Return the path of an executable: the peers' folder, this venv, the search path."""
    folders = [os.environ.get(PEERS, ""), str(Path(sys.executable).parent), os.environ["PATH"]]
    return shutil.which(executable, path=os.pathsep.join(filter(None, folders)))


def plain(port: int, workers: Sequence[str], _: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.proxy.plain", str(port), *workers]


def router(port: int, workers: Sequence[str], _: Path) -> list[str]:
    named = [f"--worker=w{number}={url}" for number, url in enumerate(workers)]
    own = ["--no-kv-events", f"--http-port={port}", "--log-level=warning", *named]
    return [sys.executable, "-m", "kvmesh", "router", *own]


def tokenizing(port: int, workers: Sequence[str], folder: Path) -> list[str]:
    """Return the command of a router that tokenizes with a real tokenizer: `$KVMESH_BENCH_MODEL`,
    else a small BPE with a ChatML template, trained on the spot.
    """
    model = os.environ.get(MODEL) or write_model(folder / "model")
    return [*router(port, workers, folder), f"--tokenizer={model}"]


def round_robin(port: int, workers: Sequence[str], folder: Path) -> list[str]:
    return [*router(port, workers, folder), "--router-mode=round-robin"]


def meta_router(port: int, workers: Sequence[str], _: Path | None = None) -> list[str]:
    """Return the command of a meta-router whose replicas are the workers: its hop alone."""
    replicas = [f"--replica=all={url}" for url in workers]
    own = [f"--http-port={port}", "--log-level=warning", *replicas]
    return [sys.executable, "-m", "kvmesh", "meta-router", *own]


def production_stack(python: str) -> Callable[..., list[str]]:
    """Return the command of production-stack's router, prefix aware; no wheel has it."""

    def command(port: int, workers: Sequence[str], _: Path) -> list[str]:
        flags = ["--host=127.0.0.1", f"--port={port}", "--log-level=error"]
        flags += ["--service-discovery=static", "--routing-logic=prefixaware"]
        flags += [f"--static-backends={','.join(workers)}"]
        flags += [f"--static-models={','.join('m' for _ in workers)}"]
        return [python, "-m", "vllm_router.app", *flags]

    return command


NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log /dev/null;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 1000000000; client_max_body_size 64m;
  client_body_buffer_size 1m; client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u;
  scgi_temp_path {folder}/s;
  upstream workers {{ {servers} keepalive 512; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://workers; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_request_buffering off;
    }}
  }}
}}
"""


def nginx(port: int, workers: Sequence[str], folder: Path) -> list[str]:
    servers = " ".join(f"server {url.removeprefix('http://')};" for url in workers)
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, port=port, servers=servers))
    return [str(find("nginx")), "-p", str(folder), "-c", str(config)]


def rust(executable: str, *first: str, policy: str) -> Callable[..., list[str]]:
    """Return the command of vllm-router, sglang-router or smg: forks with the same flags."""

    def command(port: int, workers: Sequence[str], _: Path) -> list[str]:
        flags = [f"--policy={policy}", "--host=127.0.0.1", f"--port={port}", "--log-level=error"]
        flags += [f"--prometheus-port={free_port()}", "--max-concurrent-requests=8192"]
        return [str(find(executable)), *first, *flags, "--worker-urls", *workers]

    return command


def all_peers() -> list[Peer]:
    """Return every proxy, the baseline first."""
    peers = [Peer("kvmesh plain", plain), Peer("kvmesh router (kv)", router)]
    peers.append(Peer("kvmesh router (kv), tokenizer", tokenizing))
    peers.append(Peer("kvmesh router (round robin)", round_robin))
    peers.append(Peer("kvmesh meta-router", meta_router))
    for name, executable, command in (
        ("nginx", "nginx", nginx),
        (BASELINE, "vllm-router", rust("vllm-router", policy="round_robin")),
        ("vllm-router 0.1.17 cache", "vllm-router", rust("vllm-router", policy="cache_aware")),
        (
            "sglang-router 0.3.2 cache",
            "sglang-router",
            rust("sglang-router", "launch", policy="cache_aware"),
        ),
        ("smg 1.13.0 cache", "smg", rust("smg", "launch", policy="cache_aware")),
    ):
        found = find(executable) is not None
        reason = "" if found else f"{executable} is neither on PATH nor in ${PEERS}"
        peers.append(Peer(name, command if found else None, reason))
    stack = os.environ.get(STACK, "")
    reason = "" if stack else f"no Python with its vllm_router is in ${STACK}"
    peers.append(
        Peer("production-stack prefix", production_stack(stack) if stack else None, reason)
    )
    return peers


class Pinned:
    """A started process of a server, on processor `cpu`, that answers; `pids` are its processes.

    `ask` raises one of `not_yet` while it does not. Raises `RuntimeError` with its log after
    `start_s`, or its end.
    """

    not_yet: ClassVar[tuple[type[Exception], ...]] = (OSError, http.client.HTTPException)
    stop_s: ClassVar[float] = 5.0

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        cpu: int,
        ask: Callable[[], object],
        start_s: float,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            ["taskset", "-c", str(cpu), *command],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=environment(),
        )
        try:
            self._wait(folder, ask, start_s)
        except BaseException:
            self.stop()
            raise
        self.pids = family(self._process.pid)

    def _wait(self, folder: Path, ask: Callable[[], object], start_s: float) -> None:
        deadline = time.monotonic() + start_s
        while True:
            try:
                ask()
            except self.not_yet as error:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    log = (folder / "log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"{self.name} does not serve: {error}\n{log}") from error
                time.sleep(0.1)
            else:
                return

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(self.stop_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


class Running(Pinned):
    """A started proxy."""

    def __init__(
        self,
        peer: Peer,
        workers: Sequence[str],
        folder: Path,
        cpu: int,
        start_s: float = START_S,
    ) -> None:
        assert peer.command is not None
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._key = peer.key
        command = peer.command(self.port, workers, folder)
        super().__init__(peer.name, command, folder, cpu, self._ask, start_s)

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            headers = {"content-type": "application/json"}
            if self._key:
                headers["authorization"] = f"Bearer {self._key}"
            connection.request("POST", PATH, chat_body(0, 100), headers)
            answer = connection.getresponse()
            answer.read()
            if answer.status != http.HTTPStatus.OK:
                raise http.client.HTTPException(f"status {answer.status}")
        finally:
            connection.close()


def environment() -> Mapping[str, str]:
    """Return this environment without proxies and with this checkout importable."""
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return {**kept, "PYTHONPATH": str(Path(__file__).parents[2])}


def family(pid: int) -> tuple[int, ...]:
    """Return `pid` and all processes it started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return (pid, *(one for child in children for one in family(int(child))))
