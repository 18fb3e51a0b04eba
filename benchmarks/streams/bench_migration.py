"""Of many streams, how many survive `kill -9` of one of two workers: kvmesh, Dynamo's migration.

Dynamo is had by `KVMESH_BENCH_DYNAMO`: a Python with its wheels. Simulated engines answer with a
function of the prompt, so that an answer that went on is equal to one undisturbed, or is not.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Final

import httpx
import msgspec

from benchmarks.measure import parse_options
from benchmarks.proxy.peers import free_port
from kvmesh.app.process.running import DIE_WITH_PARENT
from tests.engines.tiny_model import QWEN3, write_tiny_model

DYNAMO: Final = os.environ.get("KVMESH_BENCH_DYNAMO", "")
STREAMS: Final = 50
TOKENS: Final = 120
START_S: Final = 60.0
MIGRATIONS: Final = 3
HERE: Final = Path(__file__).parent


class Door:
    """Two workers behind a front door, as commands."""

    def __init__(self, name: str, model: str, workers: Sequence[Sequence[str]], door: str) -> None:
        self.name = name
        self.model = model
        self.url = door
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, front: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        whole = os.environ | environment | {DIE_WITH_PARENT: "1"}
        for number, command in enumerate((*self._workers, front)):
            with (folder / f"{self.name}-{number}.log").open("wb") as log:
                one = subprocess.Popen(command, stdout=log, stderr=log, env=whole)
            self._processes.append(one)

    def kill_one(self) -> None:
        """Kill the first worker."""
        self._processes[0].kill()

    def stop(self) -> None:
        for one in self._processes:
            one.kill()
            one.wait()


class Answer(msgspec.Struct):
    """What a client got. `longest_s` without a token."""

    text: str = ""
    tokens: int = 0
    reason: str = ""
    longest_s: float = 0.0


async def ask(
    client: httpx.AsyncClient, model: str, number: int, passed: Callable[[int], None]
) -> Answer:
    text = f"story {number} of many, told slowly"
    body = {"model": model, "stream": True, "temperature": 0, "max_tokens": TOKENS}
    body |= {"messages": [{"role": "user", "content": text}], "ignore_eos": True}
    found, last_s = Answer(), 0.0
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                for choice in json.loads(line.removeprefix("data: ")).get("choices", ()):
                    found.reason = choice["finish_reason"] or found.reason
                    if content := choice["delta"].get("content"):
                        now = time.monotonic()
                        found.longest_s = max(found.longest_s, now - (last_s or now))
                        last_s = now
                        found.text += content
                        found.tokens += 1
                        passed(found.tokens)
    except httpx.HTTPError:
        pass
    return found


def ignore(tokens: int) -> None:
    del tokens


async def ready(client: httpx.AsyncClient, model: str) -> None:
    """Wait until both workers answer."""
    async with asyncio.timeout(START_S):
        while (await ask(client, model, -1, ignore)).reason != "length":  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        await asyncio.sleep(5.0)


async def play(door: Door, kills_at: int) -> tuple[list[Answer], list[Answer]]:
    """Return the answers undisturbed, and those of which a worker was killed in the middle."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=door.url, timeout=60, limits=limits) as client:
        await ready(client, door.model)
        calm = await asyncio.gather(*(ask(client, door.model, n, ignore) for n in range(STREAMS)))
        killed = asyncio.Event()

        def kill(tokens: int) -> None:
            if tokens >= kills_at and not killed.is_set():
                killed.set()
                door.kill_one()

        asked = (ask(client, door.model, n, kill if n == 0 else ignore) for n in range(STREAMS))
        return calm, list(await asyncio.gather(*asked))


def kvmesh(folder: Path, kills_at: int) -> tuple[list[Answer], list[Answer]]:
    own, ports = [sys.executable, "-m", "kvmesh"], [free_port() for _ in range(7)]
    workers = [
        [
            *(*own, "mocker", f"--http-port={ports[n]}", f"--kv-events-port={ports[2 + n]}"),
            f"--kv-replay-port={ports[4 + n]}",
        ]
        for n in range(2)
    ]
    door = Door("kvmesh", "mock", workers, f"http://127.0.0.1:{ports[6]}")
    named = [f"--worker=w{n}=http://127.0.0.1:{ports[n]}" for n in range(2)]
    front = [*own, "router", "--no-kv-events", f"--http-port={ports[6]}", *named]
    door.start(front, folder, {})
    try:
        return asyncio.run(play(door, kills_at))
    finally:
        door.stop()


def dynamo(folder: Path, kills_at: int) -> tuple[list[Answer], list[Answer]]:
    model, port = write_tiny_model(folder / "tiny", QWEN3), free_port()
    worker = [DYNAMO, str(HERE / "dynamo_worker.py"), str(model)]
    door = Door("Dynamo", "m", [worker, worker], f"http://127.0.0.1:{port}")
    plane = {"DYN_FILE_KV": str(folder / "kv"), "DYN_DISCOVERY_BACKEND": "file"}
    plane |= {"DYN_REQUEST_PLANE": "tcp", "DYN_EVENT_PLANE": "zmq", "PYTHONPATH": ""}
    front = [DYNAMO, "-m", "dynamo.frontend", f"--http-port={port}", "--router-mode=round-robin"]
    door.start([*front, f"--migration-limit={MIGRATIONS}"], folder, plane)
    try:
        return asyncio.run(play(door, kills_at))
    finally:
        door.stop()


def main() -> None:
    options = parse_options("Streams that survive kill -9 of one of two workers.")
    doors = {"kvmesh": kvmesh} | ({"Dynamo": dynamo} if DYNAMO else {})
    print("" if DYNAMO else "Dynamo is left out: $KVMESH_BENCH_DYNAMO names no Python")
    rng = random.Random(1)
    found: dict[str, list[tuple[Answer, Answer]]] = {name: [] for name in doors}
    for _ in range(options.rounds):
        kills_at = rng.randrange(5, TOKENS - 20)
        for name, door in doors.items():
            with tempfile.TemporaryDirectory(prefix="kvmesh-bench-") as folder:
                calm, told = door(Path(folder), kills_at)
            found[name] += zip(calm, told, strict=True)
    for name, pairs in found.items():
        whole = sum(one.reason == "length" for _, one in pairs)
        equal = sum(one.text == calm.text for calm, one in pairs)
        # Of one of two workers: the half with the longest gaps is what was cut.
        gaps_s = sorted(one.longest_s for _, one in pairs)[len(pairs) // 2 :]
        p90_s = quantiles(gaps_s, n=10)[-1]
        print(
            f"{name}: {len(pairs)} streams, {whole} came to their end, {equal} equal; of the half "
            f"with the longest gap: p50 {median(gaps_s):.2f} s, p90 {p90_s:.2f} s"
        )


if __name__ == "__main__":
    main()
