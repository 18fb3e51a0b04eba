"""What a request costs a router besides its sockets: parsed, read, decided, booked, watched, ended.

Clients and engines are replaced by calls: bytes go into the connection as the event loop would put
them there, the engine's answer comes when all of the requests in flight are sent. `--lines` shows
which lines a sampling timer met most often.
"""

import argparse
import asyncio
import dataclasses
import gc
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, cast

import uvloop

from benchmarks.measure import Candidate, Comparison, Sample, compare, parse_options, report
from benchmarks.proxy.chats import CHATS, Chats
from benchmarks.proxy.load import request_bytes
from benchmarks.proxy.workers import JSON
from kvmesh.actors.messages import WorkerHeartbeat, WorkerSeen
from kvmesh.app.front.front import Routes
from kvmesh.app.front.key_guard import KeyGuard
from kvmesh.app.members.worker_option import StaticWorker, parse_workers
from kvmesh.app.process.running import GC_THRESHOLDS
from kvmesh.app.prompts.wiring import check_of, forward_options, reader_of, split_options
from kvmesh.app.router.command import RouterServer
from kvmesh.app.serve.gateway import Gateway
from kvmesh.app.serve.prefill import Splits
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.poison_guard import PoisonGuard
from kvmesh.core.members.worker_info import WorkerInfo
from kvmesh.observe import configure_logging
from kvmesh.settings.roles import RouterSettings
from kvmesh.transport.http.forward.forwarding import Forward
from kvmesh.transport.http.server.connection import Connection
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.limits import HttpLimits
from kvmesh.transport.http.server.listener import Listener
from kvmesh.transport.http.upstream.client import UpstreamPool, UpstreamRequest, UpstreamSink
from kvmesh.transport.http.upstream.response_head import ResponseHead
from kvmesh.transport.http.wire.deadlines import DeadlineWheel

ENGINES: Final = 4
ANSWER: Final = [(b"server", b"uvicorn"), (b"content-type", b"application/json")]
ANSWER_HEAD: Final = [*ANSWER, (b"content-length", b"%d" % len(JSON))]
SAMPLE_S: Final = 0.0005
MOST_BYTES: Final = 40_000_000
"""Of bodies made before the clock starts; then the first come again."""

SHOWN_LINES: Final = 60
SHOWN_US: Final = 0.5
ROOT: Final = Path(__file__).parents[2]
SETTINGS: Final = {400: (64, 400), 4_000: (64, 200), 100_000: (16, 60)}
"""Connections and rounds by the size of a body."""

LONG: Final = 10_000
SETTLE_EVERY: Final = 500
"""Requests between two turns of what the decision log put off."""


class Client:
    """The transport of a client's connection: counts what is written."""

    def __init__(self) -> None:
        self.writes = 0

    def write(self, data: bytes) -> None:
        self.writes += bool(data)

    def set_write_buffer_limits(self, high: int) -> None:
        del high

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 1) if name == "peername" else None

    def is_closing(self) -> bool:
        return False


class Engines:
    """The pool of connections to engines: keeps who waits for an answer, then gives it."""

    own_headers = ()
    first_byte_s = 600.0

    def __init__(self, wheel: DeadlineWheel) -> None:
        self.wheel = wheel
        self.poison = PoisonGuard()
        self._waiting: list[UpstreamSink] = []

    def send(self, request: UpstreamRequest, sink: UpstreamSink) -> object:
        assert request.body
        self._waiting.append(sink)
        return None

    def answer_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for sink in waiting:
            self.answer(sink)

    def answer(self, sink: UpstreamSink) -> None:
        sink.on_whole(ResponseHead(200, ANSWER_HEAD), JSON)


class Front:
    """A router without sockets, with `connections` clients, over engines of `models`.

    As `settings` say; it asks for one of `keys` where there are any.
    """

    def __init__(
        self,
        connections: int,
        engines: Callable[[DeadlineWheel], Engines] = Engines,
        models: tuple[str, ...] = (),
        settings: Mapping[str, Any] = {},
        keys: Path | None = None,
    ) -> None:
        named = tuple(f"w{number}=http://127.0.0.1:{number + 1}" for number in range(ENGINES))
        reported = dataclasses.replace(RouterSettings(), kv_events=False, worker=named, **settings)
        server = RouterServer(reported)
        self.context = server._context()  # noqa: SLF001  the wiring of `serve`, without its sockets
        for engine in parse_workers(named):
            _introduce(self.context, engine, models)
        loop = asyncio.get_running_loop()
        self._wheel = DeadlineWheel(loop)
        self.engines = engines(self._wheel)
        pool = cast("UpstreamPool", self.engines)
        check = check_of(reported, pool, lambda _model, _hashes: None)
        reader = reader_of(reported, "bench", check, ())
        splits = Splits(split_options(reported), pool)
        forward = partial(Forward, pool=pool)
        gateway = Gateway(self.context, reader, forward, forward_options(reported), splits)
        routes = Routes()
        gateway.mount(routes)
        handler: Callable[[Exchange], None] = routes
        if keys is not None:
            handler = KeyGuard(
                routes, keys, tenant_header=reported.admission.tenant_header, pass_on=False
            )
        listener = Listener(handler, HttpLimits(), self._wheel)
        self.clients = [Connection(listener) for _ in range(connections)]
        self.transports = [Client() for _ in self.clients]
        for client, transport in zip(self.clients, self.transports, strict=True):
            client.connection_made(cast("asyncio.Transport", transport))

    def close(self) -> None:
        """Stop the clock."""
        self._wheel.close()

    def serve(self, requests: list[bytes], rounds: int) -> int:
        """Send a request on every connection, answer all; so often. Return how many there were."""
        turn = 0
        log = self.context.decisions
        due = SETTLE_EVERY
        for _ in range(rounds):
            for client in self.clients:
                turn += 1
                client.data_received(requests[turn % len(requests)])
            self.engines.answer_all()
            if turn >= due:
                due += SETTLE_EVERY
                while not log.settle():
                    pass
        return turn


def _introduce(context: RoutingContext, engine: StaticWorker, models: tuple[str, ...]) -> None:
    workers, now = context.workers, context.clock()
    name = WorkerId(engine.worker)
    workers.membership.observe(name, 1, now + 1e6, ready=True)
    workers.describe(name, WorkerInfo())
    beat = WorkerHeartbeat(
        worker=name,
        bucket="bench",
        epoch=1,
        last_seq=0,
        url=engine.url,
        models=models,
        block_size=16,
    )
    for _ in context.router.receive(WorkerSeen(beat), now):
        pass


@contextmanager
def sampled(lines: Counter[str]) -> Iterator[None]:
    """Count the lines that a timer of processor time meets."""

    def note(_signal: int, frame: FrameType | None) -> None:
        if frame is not None:
            code = frame.f_code
            path = Path(code.co_filename)
            name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
            lines[f"{name}:{frame.f_lineno} {code.co_qualname}"] += 1

    signal.signal(signal.SIGPROF, note)
    signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def timed(
    front: Front,
    requests: list[bytes],
    warm: int,
    rounds: int,
    watch: AbstractContextManager[None] | None = None,
) -> Sample:
    """Return the processor time of one request, us, behind `warm` rounds; `watch` is entered for
    those that count. Closes the front door.
    """
    front.serve(requests, warm)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    with watch or nullcontext():
        began = time.process_time_ns()
        served = front.serve(requests, rounds)
        spent = time.process_time_ns() - began
    assert sum(transport.writes for transport in front.transports) >= served
    front.close()
    return {"cpu us": spent / served / 1000}


def measure(size: int, connections: int, rounds: int, lines: Counter[str] | None = None) -> Sample:
    """Return the processor time of one request, us."""

    async def work() -> Sample:
        front = Front(connections)
        chats = Chats(size)
        count = min(CHATS, MOST_BYTES // size)
        requests = [request_bytes(chats.body(number), number) for number in range(count)]
        watch = nullcontext() if lines is None else sampled(lines)
        return timed(front, requests, max(2, rounds // 10), rounds, watch)

    return uvloop.run(work())


def rooms(size: int) -> dict[str, float]:
    """Return where in the source tree the time of a request goes, us by folder, by a timer that
    sees Python code: what it calls in C counts as the caller's.
    """
    lines: Counter[str] = Counter()
    connections, rounds = SETTINGS[size]
    sample = measure(size, connections, rounds, lines)
    counted: Counter[str] = Counter()
    for line, count in lines.items():
        counted[line.rpartition("/")[0] or "elsewhere"] += count
    part = sample["cpu us"] / lines.total()
    return {room: count * part for room, count in counted.most_common()}


def show_lines(size: int) -> None:
    """Print where the time of requests with bodies of `size` bytes goes."""
    lines: Counter[str] = Counter()
    connections, rounds = (64, 1000) if size < LONG else (16, 100)
    sample = measure(size, connections, rounds, lines)
    functions: Counter[str] = Counter()
    for line, count in lines.items():
        place, _, function = line.partition(" ")
        functions[f"{place.partition(':')[0]} {function}"] += count
    part = sample["cpu us"] / lines.total()
    for title, counted in (("functions", functions), ("lines", lines)):
        print(f"-- {title}, us of {sample['cpu us']:.0f} a request")
        for name, count in counted.most_common(SHOWN_LINES):
            print(f"{count * part:8.2f}  {name}")


def main() -> None:
    configure_logging("warning", "console")
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--lines", type=int, default=0, help="size of the body to take apart")
    parser.add_argument("--rooms", action="store_true", help="and in which folders it is spent")
    found, rest = parser.parse_known_args()
    if found.lines:
        show_lines(found.lines)
        return
    options = parse_options(str(__doc__), rest)
    ways: dict[str, Candidate] = {
        f"{size:,} B, {connections} in flight": partial(
            measure, size, connections, options.size(full=rounds, quick=rounds // 4)
        )
        for size, (connections, rounds) in SETTINGS.items()
    }
    report(compare("A request without its sockets", ways, options.rounds), options)
    if found.rooms:
        for size in SETTINGS:
            title = f"Where the time of a request of {size:,} B goes"
            table = {room: [{"cpu us": us}] for room, us in rooms(size).items() if us >= SHOWN_US}
            report(Comparison(title, next(iter(table)), table), options)


if __name__ == "__main__":
    main()
