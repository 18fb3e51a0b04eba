"""What host memory, disk and other engines' caches are worth to a fleet, in virtual time.

For each trace and each way of holding more than the device does: the largest rate at which a share
of the requests keeps the SLO (capacity), relative to engines with device memory alone, and first
tokens at a fixed multiple of the plain fleet's capacity. Run as
`python -m benchmarks.tiers.bench_tiers --trace A.jsonl.gz`.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from kvmesh_lab.replay.options import ReplayOptions
from kvmesh_lab.replay.plan import load_slice
from kvmesh_lab.report.outcome import percentile
from kvmesh_lab.simulator.options import SimulateOptions
from kvmesh_lab.simulator.slices import Setting, Simulator

KEPT: Final = 0.9
"""Share of the requests that keep the SLO at a fleet's capacity."""

OVERLOAD: Final = 1.2
"""First tokens are compared at so many times the plain fleet's capacity."""

_CLOSE: Final = 1.02
_HEAD: Final = (
    "| trace | engines have | capacity, 1/s | x | kept SLO at 1.2 |"
    " TTFT p50 | p90 | x | hits | brought |"
)
_LEAST, _MOST = 0.02, 512.0


class Variant(msgspec.Struct, frozen=True):
    """Engines that hold `host` and `disk` times their device's blocks below it, and take blocks
    from each other at `peer_gbps`.
    """

    name: str
    host: int = 0
    disk: int = 0
    peer_gbps: float = 0.0


VARIANTS: Final = (
    Variant("device alone"),
    Variant("host 4 x", host=4),
    Variant("host 1 x, disk 16 x", host=1, disk=16),
    Variant("peers 25 GB/s", peer_gbps=25.0),
    Variant("host 4 x, peers", host=4, peer_gbps=25.0),
)


class Row(msgspec.Struct, frozen=True):
    """One variant over one trace. Rates are requests/s, times ms; `kept` is the share that kept the
    SLO at `OVERLOAD` times the plain capacity, `hits` the cached share of prompt tokens there.
    """

    trace: str
    variant: str
    capacity: float
    relative: float
    kept: float
    ttft_p50: float
    ttft_p90: float
    p90_relative: float
    hits: float
    fetched: float


class Fleet:
    """One variant over one slice of a trace, at any rate."""

    def __init__(self, options: SimulateOptions, variant: Variant) -> None:
        device = options.blocks or 1
        self._options = replace(
            options,
            host_blocks=variant.host * device,
            disk_blocks=variant.disk * device,
            peer_gbps=variant.peer_gbps,
        )
        slice_options = ReplayOptions(options.trace, requests=options.requests)
        self._simulator = Simulator(self._options, load_slice(slice_options))

    def play(self, rate: float) -> dict[str, float]:
        """Return how it goes at so many requests/s."""
        speedup = rate / self._simulator.recorded_rate
        fleet = self._simulator.play("kv", Setting("", speedup), lambda _: None)
        slo, ended = self._options.slo(), fleet.outcomes
        good = 0
        for one in ended:
            per_token = sum(one.itl_ms) / len(one.itl_ms) if one.itl_ms else 0.0
            in_time = one.ttft_ms is not None and one.ttft_ms <= slo.ttft_ms
            good += in_time and per_token <= slo.itl_ms
        firsts = sorted(one.ttft_ms or 0.0 for one in ended)
        prompts = sum(one.prompt_tokens or 0 for one in ended)
        brought = sum(sum(router.scheduler.fetches.tokens) for router in fleet.routers)
        return {
            "kept": good / len(ended),
            "p50": percentile(firsts, 0.5),
            "p90": percentile(firsts, 0.9),
            "hits": sum(one.cached_tokens or 0 for one in ended) / prompts,
            "brought": brought / prompts,
        }

    def capacity(self) -> float:
        """Return the largest rate at which `KEPT` of the requests keep the SLO."""
        low, high = _LEAST, _MOST
        while high / low > _CLOSE:
            middle = (low * high) ** 0.5
            if self.play(middle)["kept"] >= KEPT:
                low = middle
            else:
                high = middle
        return low


def rows(options: SimulateOptions, variants: tuple[Variant, ...] = VARIANTS) -> Iterator[Row]:
    """Yield one row for each variant, the plain fleet first."""
    plain = p90 = 0.0
    for variant in variants:
        fleet = Fleet(options, variant)
        capacity = fleet.capacity()
        plain = plain or capacity
        there = fleet.play(OVERLOAD * plain)
        p90 = p90 or there["p90"]
        yield Row(
            trace=options.trace.name.partition(".")[0],
            variant=variant.name,
            capacity=capacity,
            relative=capacity / plain,
            kept=there["kept"],
            ttft_p50=there["p50"],
            ttft_p90=there["p90"],
            p90_relative=there["p90"] / p90,
            hits=there["hits"],
            fetched=there["brought"],
        )


def main() -> None:
    """Print the table, and write it as JSON lines where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, action="append", required=True)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=2048, help="of 512 tokens an engine")
    parser.add_argument("--profile", default="dynamo")
    parser.add_argument("--kv-bytes", type=int, default=131_072, help="KV bytes of a token")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    print(_HEAD)
    print("|---" * 10 + "|")
    found: list[dict[str, Any]] = []
    for trace in given.trace:
        options = SimulateOptions(
            trace=trace,
            policy=("kv",),
            rate=(1.0,),
            requests=given.requests,
            engines=given.engines,
            blocks=given.blocks,
            block_size=512,
            timing_profile=given.profile,
            kv_bytes_per_token=given.kv_bytes,
            tell_output_lengths=True,
        )
        for row in rows(options):
            found.append(msgspec.structs.asdict(row))
            print(
                f"| {row.trace} | {row.variant} | {row.capacity:.2f} | {row.relative:.2f} |"
                f" {row.kept:.2f} | {row.ttft_p50:.0f} | {row.ttft_p90:.0f} |"
                f" {row.p90_relative:.2f} | {row.hits:.3f} | {row.fetched:.3f} |"
            )
            sys.stdout.flush()
    if given.json is not None:
        given.json.write_text("".join(json.dumps(one) + "\n" for one in found))


if __name__ == "__main__":
    main()
