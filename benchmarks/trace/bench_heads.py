"""What a request costs a router besides its sockets, by what its head asks for.

As `bench_request`, with heads that differ from one to the next. With `--only` some of the ways.
"""

import argparse
import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import uvloop

from benchmarks.measure import Candidate, Sample, compare, parse_options, report
from benchmarks.proxy import real_requests as real
from benchmarks.proxy.bench_request import Front, timed
from benchmarks.proxy.bench_wishes import key_file
from benchmarks.proxy.chats import Chats
from benchmarks.proxy.load import request_bytes
from kvmesh.observe import configure_logging
from kvmesh.settings.requests import AdmissionSettings

CONNECTIONS: Final = 64
REQUESTS: Final = 4000
SIZE: Final = 400
CHECK: Final = "kvmesh.app.serve.routing_context.AnswerCheck"


def _targets(number: int) -> bytes:
    return b"x-kvmesh-slo-ttft-ms: 20000\r\n" + real.varying(number)


def _priority(number: int) -> bytes:
    return b"x-kvmesh-priority: 3\r\n" + real.varying(number)


def _weight(number: int) -> bytes:
    return b"x-kvmesh-overlap-score-weight: 2.0\r\n" + real.varying(number)


def _temperature(number: int) -> bytes:
    return b"x-kvmesh-temperature: 0.5\r\n" + real.varying(number)


def _pinned(number: int) -> bytes:
    return b"x-kvmesh-worker-id: w%d\r\n" % (number % 4)


def _tenant(number: int) -> bytes:
    return b"x-kvmesh-tenant: t%d\r\n" % (number % 50)


BOUND: Final = {"admission": AdmissionSettings(max_backlog_ms=20000.0)}
WAYS: Final[dict[str, tuple[real.Made | None, dict[str, Any]]]] = {
    "equal heads": (None, {}),
    "varying": (real.varying, {}),
    "varying, answers not judged": (real.varying, {"judged": False}),
    "an SDK's, with an id": (real.sdk, {}),
    "API keys": (real.keyed, {"keys": True}),
    "session": (real.session, {}),
    "agent's session": (real.agent_session, {}),
    "priority": (_priority, {}),
    "timeout": (real.patient, {}),
    "targets": (_targets, {}),
    "priority, targets": (real.urgent, {}),
    "weight": (_weight, {}),
    "temperature": (_temperature, {}),
    "a worker named": (_pinned, {}),
    "tenant": (_tenant, {}),
    "backlog bound": (real.varying, BOUND),
    "keys, session, bound": (real.all_wishes, {"keys": True, **BOUND}),
}


def made(way: real.Made | None) -> list[bytes]:
    """Return requests with heads made in this way."""
    chats = Chats(SIZE)
    if way is None:
        return [request_bytes(chats.body(number)) for number in range(REQUESTS)]
    return [real.request(way(number), chats.body(number)) for number in range(REQUESTS)]


def measure(way: real.Made | None, settings: dict[str, Any], rounds: int) -> Sample:
    """Return the processor time of one request, us."""

    async def work(folder: Path) -> Sample:
        reported = dict(settings)
        keys = key_file(folder) if reported.pop("keys", False) else None
        judged = (
            nullcontext() if reported.pop("judged", True) else patch(CHECK, lambda _models: None)
        )
        with judged:
            front = Front(CONNECTIONS, settings=reported, keys=keys)
            return timed(front, made(way), 30, rounds)

    with tempfile.TemporaryDirectory() as folder:
        return uvloop.run(work(Path(folder)))


def main() -> None:
    configure_logging("warning", "console")
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--only", default="", help="ways whose name has this in it")
    found, rest = parser.parse_known_args()
    options = parse_options(str(__doc__), rest)
    rounds = options.size(full=200, quick=60)
    ways: dict[str, Candidate] = {
        name: partial(measure, way, settings, rounds)
        for name, (way, settings) in WAYS.items()
        if found.only in name
    }
    report(compare("A request without its sockets, by its head", ways, options.rounds), options)


if __name__ == "__main__":
    main()
