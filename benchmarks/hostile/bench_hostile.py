"""How long a hostile request stops a router or meta-router, and what memory a storm leaves it.

One hostile request after the other is sent to a real router; the most processor time between two
turns of its event loop is how long each stops everybody else (`benchmarks.hostile.watched_router`).
Each is sent several times; the least of the worst counts: what a noisy machine adds is not the
router's. `--storm` sends many bad requests of each kind instead and prints the resident
memory before and after.
"""

import argparse
import contextlib
import mmap
import multiprocessing
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchmarks.hostile.cases import CASES, Case, request_of
from benchmarks.hostile.watched_router import FORMAT
from benchmarks.started import Started

SETTLE_S: Final = 0.3
AT_ONCE: Final = 20
QUICK: Final = {"small chat", "1M messages", "64 MB of CJK", "1M token ids", "30 MB, no JSON"}
HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
SAID: Final = {True: b'"message":{"role":"assistant","content":"m"}', False: b'"text":"m"'}
ANSWER: Final = (
    b'{"model":"m","choices":[{"index":0,"finish_reason":"stop",%b}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
)
READY: Final = 200


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def engine(port: int) -> None:
    """Answer a request with a token, any other `{}`, once it is there; one thread a connection."""
    server = socket.create_server(("127.0.0.1", port))
    while True:
        client, _ = server.accept()
        threading.Thread(target=_answer, args=(client,), daemon=True).start()


def _answer(client: socket.socket) -> None:
    data = b""
    with contextlib.suppress(OSError), client:
        while True:
            while b"\r\n\r\n" not in data:
                if not (piece := client.recv(1 << 16)):
                    return
                data += piece
            head, _, rest = data.partition(b"\r\n\r\n")
            lines = [line for line in head.lower().split(b"\r\n") if b"content-length" in line]
            left = (int(lines[0].partition(b":")[2]) if lines else 0) - len(rest)
            while left > 0:
                if not (piece := client.recv(1 << 18)):
                    return
                left -= len(piece)
            data = b""
            answer = ANSWER % SAID[b"/chat/" in head] if head.startswith(b"POST") else b"{}"
            client.sendall(HEAD % len(answer) + answer)


class Watch:
    """What `watched_router` writes."""

    def __init__(self, file: Path) -> None:
        file.write_bytes(FORMAT.pack(0.0))
        with file.open("r+b") as opened:
            self._view = mmap.mmap(opened.fileno(), FORMAT.size)

    def worst_s(self) -> float:
        """Return the most between two turns of the loop since the last question."""
        worst: float = FORMAT.unpack_from(self._view)[0]
        FORMAT.pack_into(self._view, 0, 0.0)
        return worst


def send(port: int, data: bytes, timeout_s: float = 60.0) -> int:
    """Send one request; return the answer's status, 0 for none."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
    with contextlib.closing(sock):
        with contextlib.suppress(ConnectionError, TimeoutError):
            sock.sendall(data)
        answer = b""
        with contextlib.suppress(ConnectionError, TimeoutError):
            while b"\r\n" not in answer and (piece := sock.recv(4096)):
                answer += piece
        return int(answer[9:12]) if answer.startswith(b"HTTP/1.") else 0


@contextlib.contextmanager
def served(role: str, extra: list[str]) -> Iterator[tuple[Started, Watch]]:
    """Run an engine, a router over it, and for `meta-router` one of these over two of them."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        port = free_port()
        one = multiprocessing.Process(target=engine, args=(port,), daemon=True)
        one.start()
        stack.callback(one.kill)
        workers = ["--worker", f"w0=http://127.0.0.1:{port}"]
        watch = Watch(Path(folder) / "watch")
        command = ["benchmarks.hostile.watched_router", str(Path(folder) / "watch")]
        alone = role == "router"
        started = _start(
            stack,
            Path(folder),
            [*(command if alone else ["kvmesh"]), "router", "--no-kv-events", *workers],
            extra if alone else [],
        )
        if not alone:
            replicas = [f"--replica={name}=http://127.0.0.1:{started.port}" for name in "ab"]
            started = _start(stack, Path(folder), [*command, "meta-router", *replicas], extra)
        yield started, watch


def _start(
    stack: contextlib.ExitStack, folder: Path, command: list[str], extra: list[str]
) -> Started:
    port = free_port()
    arguments = [*command, "--http-port", str(port), *extra]
    started = Started(arguments, port, folder / f"{port}.log")
    stack.callback(started.kill)
    started.wait(lambda one: b"true" in one.fetch("/ready"))
    return started


def stops(role: str, cases: list[Case], rounds: int, extra: list[str]) -> None:
    """Print how long each case stops the event loop."""
    with served(role, extra) as (started, watch):
        print("| request | MB | status | longest turn, ms | processor time, ms |")
        print("|---|---|---|---|---|")
        for case in cases:
            data = request_of(case)
            worst: list[float] = []
            spent: list[float] = []
            status = 0
            for _ in range(rounds):
                watch.worst_s()
                before = started.cpu_s()
                status = send(started.port, data)
                time.sleep(SETTLE_S)
                worst.append(watch.worst_s())
                spent.append(started.cpu_s() - before)
            print(
                f"| {case.name} | {len(data) / 1e6:.1f} | {status or 'cut'} | "
                f"{min(worst) * 1e3:.0f} | {min(spent) * 1e3:.0f} |",
                flush=True,
            )


def resident(started: Started) -> float:
    """Return the process's resident memory, MB."""
    return int(Path(f"/proc/{started.pid}/statm").read_text().split()[1]) * 4096 / 1e6


def peak_resident(started: Started) -> float:
    """Return the most resident memory so far, MB."""
    lines = Path(f"/proc/{started.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM"))


def storm(role: str, rounds: int, extra: list[str]) -> None:
    """Print the memory before and after storms of bad requests."""
    with served(role, extra) as (started, _):
        for kind, act in storms().items():
            act(started.port, 2)
            time.sleep(5.0)
            before = resident(started)
            for _ in range(rounds):
                act(started.port, AT_ONCE)
            time.sleep(8.0)
            after, peak = resident(started), peak_resident(started)
            print(
                f"{kind}: {before:.0f} MB, most so far {peak:.0f} MB, after {after:.0f} MB "
                f"({after / before:.2f})",
                flush=True,
            )


def _many(data: bytes) -> Callable[[int, int], None]:
    def act(port: int, count: int) -> None:
        threads = [threading.Thread(target=send, args=(port, data)) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return act


def _cancelled(port: int, count: int) -> None:
    """Upload 30 MB of 31 on each of `count` connections, then leave."""
    body = b'{"model":"m","prompt":"' + b"a" * (30 << 20)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (31 << 20)
    socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    for sock in socks:
        with contextlib.suppress(OSError):
            sock.sendall(head + body)
    for sock in socks:
        sock.close()


def _by_name(name: str) -> bytes:
    return request_of(next(case for case in CASES if case.name == name))


def storms() -> dict[str, Callable[[int, int], None]]:
    """Return what sends so many bad requests of each kind at once."""
    return {
        "400, 30 MB cut short": _many(_by_name("30 MB, no JSON")),
        "413, too many values": _many(_by_name("1M messages")),
        "404, 30 MB to no path": _many(_by_name("30 MB to no path")),
        "200, 30 MB": _many(_by_name("30 MB of text")),
        "uploads of 30 MB, cancelled": _cancelled,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", choices=("router", "meta-router"), default="router")
    parser.add_argument("--only", default="", help="cases with this in their names")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--storm", action="store_true", help="memory instead of time")
    parser.add_argument("--quick", action="store_true", help="a few cases, once")
    options, extra = parser.parse_known_args()
    if options.quick:
        stops(options.role, [case for case in CASES if case.name in QUICK], 1, extra)
    elif options.storm:
        storm(options.role, options.rounds, extra)
    else:
        cases = [case for case in CASES if options.only in case.name]
        stops(options.role, cases, options.rounds, extra)


if __name__ == "__main__":
    main()
