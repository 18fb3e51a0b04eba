"""What asking a picker adds to requests through a real Envoy, against its own round robin."""

import asyncio
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Final

import msgspec
import uvloop

from benchmarks.measure import BenchOptions, Sample, compare, report
from benchmarks.picker.pickers import RunningPicker
from benchmarks.proxy.chats import Chats
from benchmarks.proxy.load import LENGTH, request_bytes
from benchmarks.proxy.peers import free_port
from kvmesh.app.picker.envoy_bootstrap import bootstrap
from kvmesh.app.picker.envoy_options import Address, GatewayOptions, unharmed
from kvmesh.app.picker.envoy_server import find_envoy

SIZE: Final = 8_000
TITLE: Final = "through Envoy, one at a time, 8 KB bodies, small answers"
START_S: Final = 20.0
ASKING: Final = "envoy.filters.http.ext_proc"


def address_of(url: str) -> Address:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return Address(host, int(port))


async def ask(url: str, bodies: Sequence[bytes], until_s: float, took: list[float]) -> None:
    """Send one request after the other on one connection."""
    where = address_of(url)
    reader, writer = await asyncio.open_connection(where.host, where.port)
    turn = 0
    while time.perf_counter() < until_s:
        began_s = time.perf_counter()
        writer.write(request_bytes(bodies[turn % len(bodies)]))
        head = await reader.readuntil(b"\r\n\r\n")
        found = LENGTH.search(head)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{url}: {head!r}")
        if found is None:
            await reader.readuntil(b"\r\n0\r\n\r\n")
        else:
            await reader.readexactly(int(found.group(1)))
        took.append(time.perf_counter() - began_s)
        turn += 1
    writer.close()


async def sample(url: str, seconds: float) -> Sample:
    """Return the latency of requests, one at a time."""
    chats, took = Chats(SIZE), list[float]()
    bodies = [chats.body(number) for number in range(500)]
    await ask(url, bodies, time.perf_counter() + seconds, took)
    cuts = quantiles(took, n=100)
    return {"p50 ms": cuts[49] * 1000, "p99 ms": cuts[98] * 1000, "requests/s": len(took) / seconds}


def sample_of(url: str, seconds: float) -> Sample:
    return uvloop.run(sample(url, seconds))


def without_picker(config: dict[str, object]) -> bytes:
    """Return the configuration of a gateway that asks nobody: round robin."""
    resources: Mapping[str, list[dict[str, object]]] = config["static_resources"]  # type: ignore[assignment]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]  # type: ignore[index]
    manager["http_filters"] = [one for one in manager["http_filters"] if one["name"] != ASKING]
    return msgspec.json.encode(config)


def start_envoy(options: GatewayOptions, folder: Path, stack: ExitStack) -> str:
    """Start an Envoy, return its URL when it listens."""
    folder.mkdir()
    listen = Address("127.0.0.1", free_port())
    placed = msgspec.structs.replace(options, listen=listen, admin=Address("127.0.0.1", 0))
    config = bootstrap(placed)
    path = folder / "envoy.json"
    path.write_bytes(msgspec.json.encode(config) if options.pickers else without_picker(config))
    log = stack.enter_context((folder / "log").open("wb"))
    argv = [str(find_envoy()), "--config-path", str(path), "--concurrency", "1",
            "--disable-hot-restart", "--log-level", "warning"]  # fmt: skip
    process = subprocess.Popen(argv, stdout=log, stderr=log)
    stack.callback(process.wait)
    stack.callback(process.kill)
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection((listen.host, listen.port), 1).close()
        except OSError:
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError((folder / "log").read_text()[-2000:]) from None
            time.sleep(0.1)
        else:
            return f"http://{listen}"


def latency_table(
    options: BenchOptions,
    picker: RunningPicker,
    other: RunningPicker,
    urls: Sequence[str],
    folder: Path,
) -> None:
    """Print the table of one picker, with another beside it."""
    endpoints = tuple(map(address_of, urls))
    followed = GatewayOptions(
        pickers=(Address("127.0.0.1", picker.port),), endpoints=endpoints, pick_source="metadata"
    )
    heads = msgspec.structs.replace(followed, response_body="NONE")
    ways = {
        "Envoy round robin": msgspec.structs.replace(followed, pickers=()),
        "picker, streamed both ways": followed,
        "picker, response headers alone": heads,
        "picker, BUFFERED and STREAMED": unharmed(followed),
        f"{other.name}, streamed both ways": msgspec.structs.replace(
            followed, pickers=(Address("127.0.0.1", other.port),)
        ),
    }
    seconds = 1.0 if options.quick else 3.0
    with ExitStack() as stack:
        candidates = {
            name: partial(sample_of, start_envoy(way, folder / f"envoy-{number}", stack), seconds)
            for number, (name, way) in enumerate(ways.items())
        }
        report(compare(TITLE, candidates, options.rounds), options)
