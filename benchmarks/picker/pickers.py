"""The pickers that are compared, as processes on one processor."""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.measure import cpu_ns
from benchmarks.picker.gateway import check_picker
from benchmarks.proxy.peers import Pinned, free_port

START_S: Final = 60.0


class Kind(NamedTuple):
    """A picker: `command(gRPC port, HTTP port, URLs of endpoints)`."""

    name: str
    command: Callable[[int, int, Sequence[str]], list[str]]


def ours(grpc: int, http: int, urls: Sequence[str]) -> list[str]:
    named = [f"--worker=w{number}={url}" for number, url in enumerate(urls)]
    ports = [f"--grpc-port={grpc}", f"--http-port={http}"]
    return [sys.executable, "-m", "kvmesh", "picker", "--no-kv-events", *ports,
            "--log-level=warning", *named]  # fmt: skip


def at_random(grpc: int, _: int, urls: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "benchmarks.picker.random_picker", str(grpc),
            *(url.removeprefix("http://") for url in urls)]  # fmt: skip


BASELINE: Final = Kind("grpc.aio, at random", at_random)
OURS: Final = Kind("kvmesh picker", ours)
KINDS: Final = (BASELINE, OURS)


class RunningPicker(Pinned):
    """A started picker."""

    not_yet = (Exception,)  # in any of many words
    stop_s = 10.0

    def __init__(self, kind: Kind, urls: Sequence[str], folder: Path, cpu: int) -> None:
        self.port = port = free_port()
        command = kind.command(port, free_port(), urls)
        endpoints = {url.removeprefix("http://") for url in urls}
        ask = partial(check_picker, port, endpoints)
        super().__init__(kind.name, command, folder, cpu, ask, START_S)

    def used_ns(self) -> int:
        """Return the processor time of all its processes so far."""
        return sum(map(cpu_ns, self.pids))


def processors() -> tuple[int, int]:
    """Return the processor of what is measured, and that of all else."""
    found = sorted(os.sched_getaffinity(0))
    return found[0], found[-1]
