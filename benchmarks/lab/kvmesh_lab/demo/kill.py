"""`kvmesh demo --kill`: engines and a router are killed in the middle of streams, and what clients
get is compared with what they got undisturbed.
"""

import asyncio
import http.client
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec
from rich.console import Console
from rich.table import Table

from kvmesh.app.process.supervisor import Child
from kvmesh.bounds import counted
from kvmesh.errors import TransportError
from kvmesh.settings.roles import UpSettings
from kvmesh_lab.demo.own_mesh import own_mesh

STREAMS: Final = 24
TOKENS: Final = 160
VICTIMS: Final = ("engine", "router", "engine")
"""What is killed, one a round: that from which most streams came before."""

READY_S: Final = 30.0
BACK_S: Final = 5.0
"""What was killed is started again, and takes part in the next round."""


class Streamed(msgspec.Struct):
    """One stream as its client got it. `gap_s` is the longest time between two pieces."""

    text: str = ""
    ids: set[str] = set()
    done: bool = False
    error: str = ""
    gap_s: float = 0.0
    engine: str = ""
    router: str = ""


class Round(msgspec.Struct, frozen=True):
    """What became of `STREAMS` streams while a process was killed, from which `cut` of them came:
    those `equal` are whole, and as they were undisturbed.
    """

    killed: str
    cut: int
    equal: int
    errors: int
    gap_ms: float


def stream(url: str, number: int, model: str, passed: threading.Event | None = None) -> Streamed:
    """Return one stream; `passed` is set when it is somewhere in its middle. Blocks."""
    parts = urlsplit(url)
    found, turn = Streamed(), random.Random(number).randrange(5, TOKENS // 2)  # noqa: S311
    body = json.dumps(
        {
            "model": model,
            "stream": True,
            "temperature": 0,
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": f"Tell story {number} slowly."}],
        }
    )
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=READY_S)
    try:
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = connection.getresponse()
        found.engine = answer.headers.get("x-kvmesh-worker", "").replace("worker", "engine")
        found.router = f"router-{answer.headers.get('x-kvmesh-router', '')}"
        before, pieces = time.monotonic(), 0
        for line in answer:
            if not line.startswith(b"data: "):
                continue
            now = time.monotonic()
            found.gap_s, before, pieces = max(found.gap_s, now - before), now, pieces + 1
            _take(found, line.removeprefix(b"data: ").strip())
            if passed is not None and pieces >= turn:
                passed.set()
    except (OSError, http.client.HTTPException) as error:
        found.error = repr(error)
    finally:
        connection.close()
        if passed is not None:
            passed.set()
    return found


def _take(found: Streamed, data: bytes) -> None:
    if data == b"[DONE]":
        found.done = True
        return
    event = json.loads(data)
    if "error" in event:
        found.error = str(event["error"])
        return
    found.ids.add(event["id"])
    for choice in event["choices"]:
        found.text += choice["delta"].get("content") or ""


async def run_kills(settings: UpSettings, model: str, console: Console) -> list[Round]:
    """Kill processes of a mesh of its own; return what became of the streams of each round."""
    console.print(f"starting a mesh of {counted(settings.engines, 'simulated engine')} …")
    rounds: list[Round] = []
    async with own_mesh(settings) as (url, children):
        calm = await _all(url, model, None)
        if wrong := [one.error or "no end" for one in calm if one.error or not one.done]:
            raise TransportError(f"{url}: an undisturbed stream failed: {wrong[0]}")
        for victim in VICTIMS:
            passed = threading.Event()
            killed = Counter(getattr(one, victim) for one in calm).most_common(1)[0][0]
            console.print(f"kill -9 {killed} …", highlight=False)
            found, _ = await asyncio.gather(
                _all(url, model, passed), _kill_when(passed, children, killed)
            )
            equal = sum(
                one.done and not one.error and one.text == before.text and len(one.ids) == 1
                for one, before in zip(found, calm, strict=True)
            )
            gap_ms = max(one.gap_s for one in found) * 1000.0
            errors = sum(bool(one.error) for one in found)
            cut = sum(getattr(one, victim) == killed for one in found)
            rounds.append(Round(killed, cut, equal, errors, gap_ms))
            calm = found
            await asyncio.sleep(BACK_S)
    return rounds


async def _all(url: str, model: str, passed: threading.Event | None) -> list[Streamed]:
    asked = (asyncio.to_thread(stream, url, number, model, passed) for number in range(STREAMS))
    return list(await asyncio.gather(*asked))


async def _kill_when(passed: threading.Event, children: Sequence[Child], name: str) -> None:
    await asyncio.to_thread(passed.wait, READY_S)
    kill(children, name)


def kill(children: Sequence[Child], name: str) -> None:
    """Kill the child of that name. Raises `TransportError` when there is none."""
    child = next((one for one in children if one.spec.name == name), None)
    if child is None or child.process is None:
        raise TransportError(f"no process {name} runs in the demo's mesh")
    os.kill(child.process.pid, signal.SIGKILL)


def print_rounds(rounds: Sequence[Round], console: Console) -> None:
    """Print a line for each process that was killed."""
    table = Table(title="Killed in the middle of streams")
    for name in ("kill -9", "streams", "cut by it", "equal", "errors", "longest gap"):
        table.add_column(name)
    for one in rounds:
        gap = f"{one.gap_ms:.0f} ms"
        counts = (str(count) for count in (STREAMS, one.cut, one.equal, one.errors))
        table.add_row(one.killed, *counts, gap)
    console.print(table)
