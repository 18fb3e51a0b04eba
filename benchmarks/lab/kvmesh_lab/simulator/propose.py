"""`kvmesh propose`: what a router with --auto-tune runs, at the lowest priority."""

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import IO, Final

import msgspec

from kvmesh.bounds import UNREADABLE
from kvmesh.core.insight.weight_search import SearchTask
from kvmesh.errors import ConfigError
from kvmesh_lab.simulator.proposer import LEAST_REQUESTS, Proposer
from kvmesh_lab.traces.trace import parse_trace

NICEST: Final = 19
MOST_BYTES: Final = 2 << 30
"""Memory it may take: a trace of 3,000 requests takes less than a tenth."""

CPU_TIMES: Final = 3
LEAST_CPU_S: Final = 20
PR_SET_PDEATHSIG: Final = 1


def propose(source: IO[bytes], limit: Callable[[float], None]) -> bytes:
    """Read a task (one line of JSON) and its trace; return what was found as JSON.

    `limit` is told the seconds that the search may take, before it begins. Raises `ConfigError` for
    what cannot be read or played.
    """
    try:
        task = msgspec.json.decode(source.readline(), type=SearchTask)
    except UNREADABLE as error:
        raise ConfigError(f"the first line of standard input is no task: {error}") from error
    limit(task.seconds)
    requests = parse_trace(source, "standard input")
    if len(requests) < LEAST_REQUESTS:
        raise ConfigError(f"{len(requests)} requests are too few; {LEAST_REQUESTS} at least")
    return msgspec.json.encode(Proposer(task, requests).run())


def bound(seconds: float) -> None:
    """Take little of the machine: processor time, memory; end with the parent."""
    os.nice(NICEST)
    cpu_s = round(max(LEAST_CPU_S, CPU_TIMES * seconds))
    for kind, limit in ((resource.RLIMIT_AS, MOST_BYTES), (resource.RLIMIT_CPU, cpu_s)):
        _, hard = resource.getrlimit(kind)
        within = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (within, hard))


def command() -> None:
    """Read a search task and a trace on standard input, write the weights found as JSON."""
    if os.environ.get("KVMESH_DIE_WITH_PARENT"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.stdout.buffer.write(propose(sys.stdin.buffer, bound) + b"\n")
