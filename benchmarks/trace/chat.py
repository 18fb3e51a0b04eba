"""The way of a warm chat of four tokens through a router, call by call.

A router alone over two pretend engines on real sockets: its KV-event index holds the prompt, the
core is the compiled one, tokens are bytes. Counted is every call of a Python function of kvmesh on
the router's thread from the first byte in the client connection's `data_received` to the last byte
of the answer and the release of the booking; calls that began in a timer or in a connection that
is not of HTTP are left out. Several chats are traced, the one with the least calls counts: a probe
of an engine may come in between.

    python -m benchmarks.trace.chat            a table and the tree of calls
    python -m benchmarks.trace.chat --write    the same into docs/workloads/trace.md
    python -m benchmarks.trace.chat --json     the same as JSON; --wish key: of one with an API key
"""

import argparse
import asyncio
import contextlib
import http.client
import socket
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from benchmarks.trace.calls import CallLog, Crossings, count, of_request, profile_here
from kvmesh.app.process.running import Stop
from kvmesh.app.router.command import RouterServer
from kvmesh.core.admission.api_keys import digest_of
from kvmesh.observe import configure_logging
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.requests import DecisionSettings
from kvmesh.settings.roles import RouterSettings
from kvmesh_lab.mocker.command import Mocker, MockerOptions

PAGE: Final = Path(__file__).parents[2] / "docs/workloads/trace.md"
PATH: Final = "/v1/chat/completions"
TEXT: Final = "You are a helpful assistant. " * 14
BODY: Final = (
    f'{{"model":"mock","messages":[{{"role":"user","content":"{TEXT}"}}],"max_tokens":4,'
    '"stream":true,"stream_options":{"include_usage":true}}'
).encode()
HEAD: Final = (
    b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: application/json\r\n"
    b"content-type: application/json\r\nuser-agent: trace/1\r\n" % PATH.encode()
)
KEY: Final = "trace-key"
WISHES: Final = {
    "": b"",
    "key": b"authorization: Bearer %b\r\n" % KEY.encode(),
    "session": b"x-kvmesh-session: s1\r\n",
    "targets": b"x-kvmesh-priority: 3\r\nx-kvmesh-slo-ttft-ms: 20000\r\n",
}
"""What else a chat's head has; "": nothing."""

END: Final = b"0\r\n\r\n"
ENGINES: Final = 2
WARM_UP: Final = 6
TRACED: Final = 24
PAUSE_S: Final = 0.05
"""After an answer: events of it are told, the engine's connection is put back."""
READY_S: Final = 30.0


class _Loop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        ready: Future[asyncio.AbstractEventLoop] = Future()

        def run() -> None:
            with self._runner:
                loop = self._runner.get_loop()
                ready.set_result(loop)
                loop.run_forever()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        self.loop = ready.result()

    def run(self, work: Callable[[], Awaitable[None]]) -> "Future[None]":
        async def begin() -> None:
            await work()

        return asyncio.run_coroutine_threadsafe(begin(), self.loop)

    def call(self, work: Callable[[], None]) -> None:
        """Run `work` on the thread and wait for it."""
        done: Future[None] = Future()

        def call() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  told to who waits
                done.set_exception(error)
            else:
                done.set_result(None)

        self.loop.call_soon_threadsafe(call)
        done.result(READY_S)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(READY_S)


@contextlib.contextmanager
def engines() -> Iterator[list[Mocker]]:
    """Run pretend engines that publish their KV events, on a thread of their own."""
    thread = _Loop()
    options = MockerOptions(port=0, kv_events_port=0, replay_port=0)
    mockers = [Mocker(options) for _ in range(ENGINES)]
    try:
        for mocker in mockers:
            thread.run(mocker.start).result(READY_S)
        yield mockers
    finally:
        for mocker in mockers:
            thread.run(mocker.stop).result(READY_S)
        thread.close()


@contextlib.contextmanager
def router(
    mockers: list[Mocker], explain_per_s: int, keys: Path | None
) -> Iterator[tuple[RouterServer, _Loop, int]]:
    """Run a router alone over these engines on a thread; it is ready. It asks for one of `keys`."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    settings = RouterSettings(
        worker=tuple(
            f"w{number}={one.url},zmq={one.kv_events_endpoint()},replay={one.replay_endpoint()}"
            for number, one in enumerate(mockers)
        ),
        router_id="trace",
        bucket="trace",
        seed=1,
        decision=DecisionSettings(explain_per_s=explain_per_s),
        http=HttpSettings(http_port=port, drain_s=1.0, api_keys=keys),
    )
    thread = _Loop()
    server = RouterServer(settings)
    stop = Stop()
    serving = thread.run(lambda: server.serve(stop))
    try:
        _wait_ready(port)
        yield server, thread, port
    finally:
        thread.call(stop.request)
        serving.result(READY_S)
        thread.close()


def _wait_ready(port: int) -> None:
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=READY_S)
        with contextlib.suppress(OSError), contextlib.closing(connection):
            connection.request("GET", "/ready")
            if connection.getresponse().status == http.client.OK:
                return
        time.sleep(PAUSE_S)
    raise TimeoutError(f"the router on port {port} is not ready")


@contextlib.contextmanager
def key_file(wish: str) -> Iterator[Path | None]:
    """Write a file with the key that such a chat shows; None where it shows none."""
    if wish != "key":
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.toml"
        path.write_text(f'[keys.trace]\nsha256 = "{digest_of(KEY)}"\n')
        yield path


def _ask(client: socket.socket, wish: str) -> bytes:
    client.sendall(b"%b%bcontent-length: %d\r\n\r\n%b" % (HEAD, WISHES[wish], len(BODY), BODY))
    answer = b""
    while not answer.endswith(END):
        data = client.recv(1 << 16)
        if not data:
            raise ConnectionError(f"the router closed the connection after {answer!r}")
        answer += data
    time.sleep(PAUSE_S)
    return answer


def trace_chat(wish: str = "", *, busy: bool = False) -> Crossings:
    """Return what a warm chat of four tokens passes in a router; its head has one of `WISHES`.

    `busy`: as in a second that has had its share of decisions with every candidate weighed.
    """
    explain_per_s = 0 if busy else DecisionSettings().explain_per_s
    traced: list[Crossings] = []
    with (
        engines() as mockers,
        key_file(wish) as keys,
        router(mockers, explain_per_s, keys) as (server, thread, port),
        socket.create_connection(("127.0.0.1", port), READY_S) as client,
    ):
        for _ in range(WARM_UP):
            _ask(client, wish)
        head = _ask(client, wish).partition(b"\r\n\r\n")[0]
        if b"x-kvmesh-trust: exact" not in head or b"x-kvmesh-overlap-blocks: 0" in head:
            raise RuntimeError(f"the prompt is not cached by what events told: {head!r}")
        for _ in range(TRACED):
            log = CallLog()
            thread.call(lambda log=log: profile_here(log))  # type: ignore[misc]
            _ask(client, wish)
            thread.call(lambda: profile_here(None))
            if server.scheduler.sequences.statistics().active_requests:
                raise RuntimeError("the booking was not released")
            traced.append(count(of_request(log.calls)))
    return min(traced, key=lambda one: one.calls)


def page(found: Crossings, busy: Crossings) -> str:
    """Return the figures and the tree as Markdown."""
    rows = "\n".join(
        f"| `{name}` | {calls} | {functions} | {files} |"
        for name, (calls, functions, files) in found.by_package.items()
    )
    tree = "\n".join(
        f"{'  ' * call.depth}{call.function}  {call.path}:{call.line}" for call in found.tree
    )
    lines = (
        "# The way of a warm chat",
        "",
        "Written by `python -m benchmarks.trace.chat --write`. A streamed chat of four tokens,",
        "whose prompt the KV-event index holds, through a router alone over two engines on real",
        "sockets, with the byte tokenizer. Counted is each call of a Python",
        "function of kvmesh on the router's thread, from the first byte in `data_received` of the",
        "client's connection to the last byte of the answer and the release of the booking. Not",
        "counted: C functions, constructors written in C, comprehensions, timers. A crossing is a",
        "call from one file into another.",
        "",
        f"**{found.calls} calls of {found.functions} functions in {found.files} files**,",
        f"**{found.crossings} crossings**.",
        "",
        "That is a chat alone: for `kvmesh explain` every worker is weighed in full, for at most",
        f"{DecisionSettings().explain_per_s} chats a second. Any other passes {busy.calls} calls",
        f"of {busy.functions} functions in {busy.files} files.",
        "",
        "| package | calls | functions | files |",
        "|---|---|---|---|",
        rows,
        "",
        "Each line is a call, indented below the function that called; those at the margin are",
        "called by the event loop.",
        "",
        "```",
        tree,
        "```",
        "",
    )
    return "\n".join(lines)


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trace.chat", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--wish", choices=[*WISHES], default="", help="what else its head has")
    options = parser.parse_args()
    configure_logging("error", "console")
    found = trace_chat(options.wish)
    if options.json:
        print(msgspec.json.encode(found).decode())
        return
    text = page(found, trace_chat(options.wish, busy=True))
    if options.write:
        PAGE.write_text(text)
        print(text.partition("Each line")[0])
    else:
        print(text)


if __name__ == "__main__":
    main()
