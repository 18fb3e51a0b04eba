"""What it takes to start: from process start to ready, in time, processor time and memory.

Each role starts with nothing to load: a router alone over one engine, a router on an empty
nats-server, a meta-router over that, a sidecar of the engine. `--beside PATH` has the same
processes of another checkout take turns with these.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.measure import (
    Candidate,
    Sample,
    compare,
    parse_options,
    report,
    resident_bytes,
)
from benchmarks.proxy.peers import free_port
from benchmarks.started import Started, as_installed
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.observe import configure_logging

HERE: Final = Path(__file__).resolve().parents[2]
MB: Final = 1024**2
SETTLE_S: Final = 1.0
"""What a process loads after it is ready counts as its memory, too."""

Ready = Callable[[Started], bool]


def is_ready(process: Started) -> bool:
    """It would take requests."""
    return bool(process.ask("/ready")["ready"])


def is_read(process: Started) -> bool:
    """It knows the whole journal; no worker is there."""
    return bool(process.ask("/ready")["reason"] == "no usable worker")


def answers(process: Started) -> bool:
    """Its front door is open."""
    return "reason" in process.ask("/ready")


def runs(process: Started) -> bool:
    """A sidecar has no door: it says so in its log."""
    return '"sidecar runs"' in process.log()


class Role:
    """A command of one checkout, started anew each round."""

    def __init__(self, tree: Path, arguments: Sequence[str], ready: Ready, folder: Path) -> None:
        self._tree = tree
        self._arguments = arguments
        self._ready = ready
        self._folder = folder

    def start(self) -> Sample:
        """Return what one start took."""
        port = free_port()
        line = [one.replace("PORT", str(port)) for one in self._arguments]
        arguments = ["kvmesh", *line]
        process = Started(arguments, port, self._folder / "start.log", self._tree)
        try:
            ready_s = process.wait(self._ready)
            cpu_s = process.cpu_s()
            time.sleep(SETTLE_S)
            memory = resident_bytes(process.pid) / MB
            later_s = process.cpu_s() - cpu_s
        finally:
            process.kill()
        return {"ready s": ready_s, "cpu s": cpu_s, "cpu s after": later_s, "MB": memory}


def show_help(tree: Path) -> Sample:
    """Return what one `router --help` took."""
    line = [sys.executable, "-m", "kvmesh", "router", "--help"]
    begin_s = time.perf_counter()
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, env=as_installed(), cwd=tree)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return {
        "ready s": time.perf_counter() - begin_s,
        "cpu s": used.ru_utime + used.ru_stime,
        "MB": used.ru_maxrss / 1024,
    }


@contextmanager
def engine(folder: Path) -> Iterator[int]:
    """Run a pretend engine; give its port."""
    port, events, replay = free_port(), free_port(), free_port()
    arguments = ["kvmesh", "mocker", "--http-port", str(port), "--kv-events-port", str(events)]
    arguments += ["--kv-replay-port", str(replay)]
    process = Started(arguments, port, folder / "engine.log")
    try:
        process.wait(lambda one: bool(one.fetch("/health") == b""))
        yield port
    finally:
        process.kill()


def candidates(tree: Path, port: int, url: str, folder: Path) -> dict[str, Candidate]:
    """Return the starts of one checkout, by name."""
    nats, http = ["--nats-url", url], ["--http-port", "PORT"]
    worker = f"http://127.0.0.1:{port}"
    roles = {
        "router alone": Role(tree, ["router", "--worker", worker, *http], is_ready, folder),
        "router on NATS": Role(tree, ["router", *nats, *http], is_read, folder),
        "meta-router": Role(tree, ["meta-router", *nats, *http], answers, folder),
        "sidecar": Role(tree, ["worker", "--engine-url", worker, *nats], runs, folder),
    }
    return {"router --help": partial(show_help, tree)} | {
        name: role.start for name, role in roles.items()
    }


def main() -> None:
    configure_logging("warning", "console")
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--beside", type=Path)
    found, others = parser.parse_known_args()
    options = parse_options("What it takes to start; --beside PATH: another checkout, too.", others)
    trees = {"here": HERE} | ({"beside": found.beside.resolve()} if found.beside else {})
    with ExitStack() as stack:
        name = tempfile.TemporaryDirectory(prefix="kvmesh-bench-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(name))
        server = NatsServer(folder / "nats")
        url = asyncio.run(server.start())
        stack.callback(lambda: asyncio.run(server.stop()))
        port = stack.enter_context(engine(folder))
        ways = {label: candidates(tree, port, url, folder) for label, tree in trees.items()}
        for what in ways["here"]:
            turns = {label: ways[label][what] for label in ways}
            report(compare(what, turns, options.rounds), options)


if __name__ == "__main__":
    main()
