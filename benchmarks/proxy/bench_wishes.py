"""What real requests cost a router: varying heads, keys, wishes, clients' forms of bodies.

Ratios are to vllm-router's round robin with the same varying heads, in the same run. Processor time
comes from /proc; load and pretend engines run on another processor.
"""

import hashlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Final, NamedTuple

import uvloop

from benchmarks.measure import (
    BenchOptions,
    Candidate,
    Sample,
    compare,
    parse_options,
    python_build,
    report,
)
from benchmarks.proxy import real_requests as real
from benchmarks.proxy.bench_proxy import engines, keep_facts, outrun_neighbours, parse_own, used_ns
from benchmarks.proxy.load import drive_made
from benchmarks.proxy.peers import BASELINE, Peer, Running, all_peers, router, tokenizing
from kvmesh.transport.http.wire.sockets import raise_open_files_limit

PEERS: Final = (BASELINE, "vllm-router 0.1.17 cache", "sglang-router 0.3.2 cache")
TOGETHER: Final = "benchmarks.cost.together"
VARYING: Final = "varying heads"
TITLE: Final = "Real requests: "
"""What the titles of these tables begin with."""

MADE: Final = 4096
"""Requests made before the clock starts; then the first come again."""


SINK: Final = "SINK"
"""Stands in flags for where spans are taken."""


class Way(NamedTuple):
    """One way of asking: what each request's head has, and what its router is told; `meta`: a
    meta-router stands before the router, and both count.
    """

    name: str
    head: real.Made
    flags: tuple[str, ...] = ()
    keys: bool = False
    meta: bool = False


KEYS: Final = Way("API keys", real.keyed, keys=True)
BOUND: Final = "--max-backlog-ms=20000"
OTLP: Final = f"--otlp-endpoint={SINK}"
WAYS: Final = (
    Way(VARYING, real.varying),
    Way("an SDK's heads", real.sdk),
    KEYS,
    Way("session", real.session),
    Way("agent's session", real.agent_session),
    Way("priority, targets", real.urgent),
    Way("timeout", real.patient),
    Way("backlog bound", real.varying, (BOUND,)),
    Way("OTLP 1 %", real.varying, (OTLP, "--otlp-sample=0.01")),
    Way("OTLP all", real.varying, (OTLP, "--otlp-sample=1")),
    Way("all of these", real.all_wishes, (BOUND, OTLP, "--otlp-sample=1"), keys=True),
    Way("behind a meta-router", real.varying, meta=True),
    Way("session, behind a meta-router", real.session, meta=True),
)


class Form(NamedTuple):
    """One form of bodies, and which ways of asking are tried with it."""

    name: str
    body: real.Made
    ways: tuple[Way, ...] = WAYS[:1]
    connections: int = 64
    made: int = MADE


FORMS: Final = (
    Form("400 B", real.chat(400), WAYS),
    Form("4 KB", real.chat(4000), (WAYS[0], KEYS)),
    Form("parts", real.parts),
    Form("tools", real.tools),
    Form("an agent's 12 turns", real.agent, connections=32),
    Form("conversations of 128k tokens that grow", real.growing, connections=8, made=64),
)


def key_file(folder: Path) -> Path:
    """Write a file with the clients' key and many others."""
    path = folder / "keys.toml"
    keys = [real.KEY, *(f"other-{number}" for number in range(100))]
    path.write_text(
        "".join(
            f'[keys.k{number}]\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n'
            for number, key in enumerate(keys)
        )
    )
    return path


def ours(way: Way, sink: str, *, reads: bool) -> Peer:
    """Return a router for this way, with a real tokenizer if it `reads`; `sink` takes spans."""

    def command(port: int, workers: Sequence[str], folder: Path) -> list[str]:
        made = (tokenizing if reads else router)(port, workers, folder)
        keys = [f"--api-keys={key_file(folder)}"] if way.keys else []
        flags = [one.replace(SINK, sink) for one in way.flags]
        made = ["tests.fixed_flags" if one == "kvmesh" else one for one in made]
        made = [*made, "--parity-sample=0", *flags, *keys]
        return [sys.executable, "-m", TOGETHER, str(port), *made] if way.meta else made

    name = f"kvmesh, {'tokenizer' if reads else 'bytes'}: {way.name}"
    return Peer(name, command, key=real.KEY if way.keys else "")


def measured(running: Running, way: Way, form: Form, seconds: float, sent: Counter[str]) -> Sample:
    """Return the processor time of a request."""
    first = sent[running.name]
    numbers = range(first, first + form.made)
    made = [real.request(way.head(number), form.body(number)) for number in numbers]
    before = used_ns(running)
    served = uvloop.run(drive_made(running.port, made, form.connections, seconds))
    sent[running.name] += form.made
    used_us = (used_ns(running) - before) / 1000
    return {"cpu us": used_us / served.requests, "req/s": served.requests / seconds}


class Sink(BaseHTTPRequestHandler):
    """Takes spans and forgets them."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  as it is named
        """Say nothing."""


@contextmanager
def spans_taken() -> Iterator[str]:
    """Yield the URL of a sink for spans."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Sink) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def run_form(
    form: Form,
    options: BenchOptions,
    start: Callable[[Peer], Running],
    peers: Sequence[Peer],
    sink: str,
) -> None:
    """Let all ways of one form take turns, each with a router of its own."""
    seconds = 1.0 if options.quick else 3.0
    sent: Counter[str] = Counter()
    ways: list[tuple[Peer, Way]] = [(peer, WAYS[0]) for peer in peers]
    ways += [(ours(way, sink, reads=reads), way) for way in form.ways for reads in (False, True)]
    with ExitStack() as stack:
        candidates: dict[str, Candidate] = {}
        for peer, way in ways:
            running = start(peer)
            stack.callback(running.stop)
            candidates[peer.name] = partial(measured, running, way, form, seconds, sent)
        report(compare(TITLE + form.name, candidates, options.rounds), options)


def found_peers() -> Iterator[Peer]:
    for peer in all_peers():
        if peer.name in PEERS and peer.command is not None:
            yield peer
        elif peer.name in PEERS:
            print(f"left out: {peer.name}: {peer.missing}")


def main() -> None:
    own, rest = parse_own()
    options = parse_options(str(__doc__), rest)
    raise_open_files_limit()
    quiet = not own.polite and outrun_neighbours()
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[-1]})
    print(python_build())
    keep_facts(options, priority=quiet)
    peers = sorted(found_peers(), key=lambda peer: peer.name != BASELINE)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = stack.enter_context(engines(cpus[-1]))
        sink = stack.enter_context(spans_taken())

        def start(peer: Peer) -> Running:
            place = folder / "".join(one if one.isalnum() else "-" for one in peer.name)
            return Running(peer, urls, place, cpus[0])

        for form in FORMS:
            if own.only in form.name:
                run_form(form, options, start, peers, sink)


if __name__ == "__main__":
    main()
