"""Instructions a request: a proxy under valgrind's callgrind serves a fixed number of chats.

A busy neighbour, a lowered clock and cold caches change nothing of it; what the kernel does is not
seen. Chats are 400 B or 4 KB, one at a time, so that each run does the same. The count begins after
the first chats: imports and caches are not in it.
"""

import argparse
import http.client
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.measure import Candidate, Sample, compare, parse_options, python_build, report
from benchmarks.proxy.bench_proxy import engines
from benchmarks.proxy.chats import Chats
from benchmarks.proxy.load import PATH
from benchmarks.proxy.peers import BASELINE, Peer, Running, all_peers

WARM: Final = 200
START_S: Final = 900.0
DUMPED_S: Final = 60.0
TOTALS: Final = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)
DEFAULT: Final = ("kvmesh plain", "kvmesh router (kv)", "kvmesh router (round", BASELINE, "sglang")
"""Callgrind counts one process at a time."""


class Counted:
    """A proxy under callgrind."""

    def __init__(self, peer: Peer, urls: Sequence[str], folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        assert peer.command is not None
        command = peer.command

        def under(port: int, workers: Sequence[str], own: Path) -> list[str]:
            tool = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/counts"]
            return [*tool, *command(port, workers, own)]

        self._running = Running(Peer(peer.name, under), urls, folder, _any_cpu(), START_S)

    def send(self, chats: Chats, first: int, count: int) -> None:
        """Send chats one after the other over one connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self._running.port, timeout=60)
        headers = {"content-type": "application/json", "authorization": "Bearer k"}
        for number in range(first, first + count):
            varying = headers | {"x-foo": f"bar-{number}"}
            connection.request("POST", PATH, chats.body(number), varying)
            answer = connection.getresponse()
            answer.read()
            if answer.status != http.HTTPStatus.OK:
                raise RuntimeError(f"{self._running.name}: status {answer.status}")
        connection.close()

    def count(self) -> int:
        """Return the instructions since this was asked before, or the start."""
        before = set(self._folder.glob("counts.*"))
        subprocess.run(
            ["callgrind_control", "--dump", str(self._running.pids[0])],
            check=True,
            capture_output=True,
            timeout=DUMPED_S,
        )
        deadline = time.monotonic() + DUMPED_S
        while time.monotonic() < deadline:
            for path in set(self._folder.glob("counts.*")) - before:
                if found := TOTALS.search(path.read_text("utf-8", "replace")):
                    return int(found[1])
            time.sleep(0.05)
        raise RuntimeError(f"{self._running.name}: callgrind wrote no counts to {self._folder}")

    def stop(self) -> None:
        self._running.stop()


def _any_cpu() -> int:
    return min(os.sched_getaffinity(0))


def count_requests(
    peer: Peer, urls: Sequence[str], folder: Path, sizes: Sequence[int], requests: int
) -> Sample:
    """Return the instructions of a request of each size."""
    proxy = Counted(peer, urls, folder)
    sample: dict[str, float] = {}
    try:
        for size in sizes:
            chats = Chats(size)
            proxy.send(chats, 0, WARM)
            proxy.count()
            proxy.send(chats, WARM, requests)
            sample[f"{size:,} B kinstr"] = proxy.count() / requests / 1000
    finally:
        proxy.stop()
    return sample


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--proxy", action="append", help="a part of the names wanted; repeat")
    found, rest = parser.parse_known_args()
    options = parse_options(str(__doc__), rest)
    if shutil.which("valgrind") is None:
        print("valgrind is not installed (apt-get install valgrind): nothing is counted")
        return
    wanted = tuple(found.proxy or (DEFAULT[1:2] if options.quick else DEFAULT))
    peers = [
        peer
        for peer in all_peers()
        if peer.command is not None and any(part in peer.name for part in wanted)
    ]
    peers.sort(key=lambda peer: peer.name != BASELINE)
    sizes = (400,) if options.quick else (400, 4_000)
    print(python_build())
    with tempfile.TemporaryDirectory() as name, engines(max(os.sched_getaffinity(0))) as urls:
        candidates: dict[str, Candidate] = {
            peer.name: partial(
                count_requests,
                peer,
                urls,
                Path(name) / peer.name.replace(" ", "-"),
                sizes,
                options.size(full=1_000, quick=200),
            )
            for peer in peers
        }
        report(compare("instructions a request", candidates, rounds=1, warm_up=0), options)


if __name__ == "__main__":
    main()
