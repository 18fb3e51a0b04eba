"""What a pick costs: processor time of the picker by size of the body, picks a second of one core,
and what asking a picker adds to the latency of requests through Envoy.

The picker runs on one processor, gateway and pretend engines on another; its time comes from /proc,
so the load may be slow without changing the figure. `--only TEXT` selects tables by their title.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Final

import msgspec
import uvloop

from benchmarks.measure import (
    BenchOptions,
    Candidate,
    Sample,
    compare,
    cpu_ns,
    facts,
    parse_options,
    report,
)
from benchmarks.picker.gateway import Follow, Load, Script, make_scripts
from benchmarks.picker.latency import TITLE, latency_table
from benchmarks.picker.pickers import BASELINE, KINDS, OURS, RunningPicker, processors
from benchmarks.proxy.bench_proxy import engines
from benchmarks.proxy.load import drive
from benchmarks.proxy.peers import Peer, Running, router

SIZES: Final = {400: (64, "400 B"), 4_000: (64, "4 KB"), 8_000: (64, "8 KB, 2k tokens"),
                100_000: (16, "100 KB"), 1_000_000: (4, "1 MB")}  # fmt: skip
"""Streams at a time, and the name, by bytes of a body."""
FOLLOWS: Final[Mapping[Follow, str]] = {
    "bodies": "response bodies shown: 8 pieces",
    "heads": "response headers alone",
}
CPU: Final = "cpu us a pick"
RATE: Final = "picks/s a core"
HTTP: Final = "kvmesh router, HTTP"
LINKS: Final = 2
SLOW: Final = 1_000_000
"""From this size on there are few requests in a second: it gets more seconds."""


def title_of(size: int, follow: Follow) -> str:
    """Return the title of a table."""
    streams, name = SIZES[size]
    return f"{name} bodies, {streams} at a time, {FOLLOWS[follow]}"


def picks_sample(
    picker: RunningPicker, scripts: Sequence[Script], streams: int, seconds: float
) -> Sample:
    """Return what picks cost in a closed loop."""
    load = Load(picker.port, list(scripts), min(LINKS, streams), streams)
    before = picker.used_ns()
    uvloop.run(load.run(seconds))
    used_us = (picker.used_ns() - before) / 1000
    cuts = quantiles(load.seconds, n=100) if len(load.seconds) > 1 else load.seconds * 99
    return {
        CPU: used_us / load.picks,
        RATE: 1e6 * load.picks / used_us,
        "picks/s seen": load.picks / seconds,
        "p50 ms": median(load.seconds) * 1000,
        "p99 ms": cuts[98] * 1000,
    }


def router_sample(running: Running, size: int, connections: int, seconds: float) -> Sample:
    """Return what the same chats cost our HTTP router, answered by one small piece of JSON."""
    before = sum(map(cpu_ns, running.pids))
    served = drive(running.port, size, connections, seconds)
    used_us = (sum(map(cpu_ns, running.pids)) - before) / 1000
    return {
        CPU: used_us / served.requests,
        RATE: 1e6 * served.requests / used_us,
        "picks/s seen": served.requests / seconds,
        "p50 ms": served.p50_us / 1000,
        "p99 ms": served.p99_us / 1000,
    }


def run_costs(
    options: BenchOptions, pickers: Sequence[RunningPicker], http: Running, only: str
) -> None:
    seconds = 1.0 if options.quick else 2.0
    for follow in FOLLOWS:
        for size, (streams, _) in SIZES.items():
            title = title_of(size, follow)
            if only not in title:
                continue
            scripts = make_scripts(size, follow)
            span = 2 * seconds if size >= SLOW else seconds
            candidates: dict[str, Candidate] = {
                one.name: partial(picks_sample, one, scripts, streams, span) for one in pickers
            }
            if follow == "bodies":
                candidates[HTTP] = partial(router_sample, http, size, streams, span)
            report(compare(title, candidates, options.rounds), options)


def parse(arguments: Sequence[str] | None = None) -> tuple[BenchOptions, str]:
    """Return the options of every benchmark, and `--only`."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--only", default="")
    found, rest = parser.parse_known_args(arguments)
    return parse_options(str(__doc__), rest), str(found.only)


def main(arguments: Sequence[str] | None = None) -> None:
    options, only = parse(arguments)
    measured, others = processors()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = stack.enter_context(engines(others))
        pickers = []
        for number, kind in enumerate(KINDS):
            picker = RunningPicker(kind, urls, folder / str(number), measured)
            stack.callback(picker.stop)
            pickers.append(picker)
        http = Running(Peer("kvmesh router", router), urls, folder / "http", measured)
        stack.callback(http.stop)
        os.sched_setaffinity(0, {others})
        run_costs(options, pickers, http, only)
        if only in TITLE:
            named = {one.name: one for one in pickers}
            latency_table(options, named[OURS.name], named[BASELINE.name], urls, folder)
    if options.json is not None:
        with options.json.open("ab") as file:
            file.write(msgspec.json.encode({"facts": facts()}) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
