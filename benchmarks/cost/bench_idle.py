"""`python -m benchmarks.cost.bench_idle`: what a whole mesh costs that nobody asks for anything.

Starts `kvmesh up`, lets it settle, and reads /proc: processor time and wake-ups over the seconds of
measuring, and the proportional set size (PSS), which shares out pages that several processes have.
"""

import argparse
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.started import as_installed

SETTLE_S: Final = 20.0
MEASURE_S: Final = 60.0
START_S: Final = 120.0
UP: Final = "kvmesh is up"
MIB: Final = 1024
PORTS: Final = 400
"""Ports above the first that `kvmesh up` takes."""


class Cost(msgspec.Struct, frozen=True):
    """One process: share of a core, wake-ups a second, PSS and RSS in MiB."""

    name: str
    cpu: float
    wakes: float
    pss: float
    rss: float


def family(root: int) -> list[int]:
    """Return a process and all its descendants."""
    found, ahead = list[int](), [root]
    while ahead:
        pid = ahead.pop()
        found.append(pid)
        for task in Path(f"/proc/{pid}/task").iterdir():
            ahead += map(int, (task / "children").read_text().split())
    return found


def name_of(pid: int, root: int) -> str:
    """Return what a process of the mesh is."""
    words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").split()
    if "kvmesh" not in words:
        return Path(words[0]).name
    role = words[words.index("kvmesh") + 1]
    return "fork server" if role == "up" and pid != root else role


def read_times(pid: int) -> tuple[float, int]:
    """Return the seconds of processor time of a process, and how often its threads waited."""
    ran_ns = waits = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        ran_ns += int((task / "schedstat").read_text().split()[0])
        status = (task / "status").read_text()
        waits += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return ran_ns / 1e9, waits


def read_memory(pid: int) -> tuple[float, float]:
    """Return PSS and RSS, MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: int(size.split()[0]) for name, _, size in (one.partition(":") for one in lines)}
    return sizes["Pss"] / MIB, sizes["Rss"] / MIB


def measure(root: int, seconds: float) -> list[Cost]:
    """Return the cost of each process of a mesh."""
    before = {pid: read_times(pid) for pid in family(root)}
    time.sleep(seconds)
    costs: list[Cost] = []
    for pid, (ran_s, waits) in before.items():
        now_s, now_waits = read_times(pid)
        pss, rss = read_memory(pid)
        cpu, wakes = (now_s - ran_s) / seconds, (now_waits - waits) / seconds
        costs.append(Cost(name_of(pid, root), cpu, wakes, pss, rss))
    return costs


def table(costs: Sequence[Cost]) -> Iterator[str]:
    """Yield the table: a row a role, of one of its processes, then the sum."""
    yield "| process | how many | CPU, % of a core, each | wake-ups/s, each | PSS, MiB, each |"
    yield "|---|---|---|---|---|"
    for name in dict.fromkeys(one.name for one in costs):
        ones = [one for one in costs if one.name == name]
        count = len(ones)
        cpu, wakes, pss = (
            sum(getattr(one, what) for one in ones) / count for what in ("cpu", "wakes", "pss")
        )
        yield f"| {name} | {count} | {cpu:.2%} | {wakes:.0f} | {pss:.1f} |"
    cpu, wakes = sum(one.cpu for one in costs), sum(one.wakes for one in costs)
    pss = sum(one.pss for one in costs)
    yield f"| all | {len(costs)} | {cpu:.2%} | {wakes:.0f} | {pss:.0f} |"


def free_base() -> int:
    """Return a port above which nothing listens, most likely."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return min(int(probe.getsockname()[1]), (1 << 16) - PORTS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost.bench_idle")
    parser.add_argument("--seconds", type=float, default=MEASURE_S)
    parser.add_argument("--settle", type=float, default=SETTLE_S)
    parser.add_argument("arguments", nargs="*", help="of kvmesh up, behind --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        line = [sys.executable, "-m", "kvmesh", "up", "--http-port", str(free_base())]
        line += ["--data-dir", str(Path(folder) / "data"), *options.arguments]
        with log.open("wb") as file:
            mesh = subprocess.Popen(line, stderr=file, env=as_installed())
        try:
            until_s = time.time() + START_S
            while UP not in log.read_text():
                if mesh.poll() is not None or time.time() > until_s:
                    sys.exit(log.read_text())
                time.sleep(0.1)
            time.sleep(options.settle)
            print(*table(measure(mesh.pid, options.seconds)), sep="\n")
        finally:
            mesh.terminate()
            mesh.wait()


if __name__ == "__main__":
    main()
