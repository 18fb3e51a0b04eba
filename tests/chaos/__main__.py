"""`python -m tests.chaos`: rounds of chaos on one mesh until the time is up, a line each."""

import argparse
import itertools
import tempfile
import time
from pathlib import Path

import uvloop

from kvmesh.observe import configure_logging
from tests.chaos.mesh import MeshSize
from tests.chaos.rounds import running_rounds

GOAL = 0.999
ENOUGH = 10_000
"""Of fewer requests a single stream that was cut would be too much."""

SIZES = {
    1: MeshSize(),
    3: MeshSize(servers=3, routers=3, ranks=(1, 2, 1)),
}


async def run(folder: Path, servers: int, first_seed: int, seconds: float) -> None:
    """Run rounds of consecutive seeds. Raises `AssertionError` that tells of the first bad one, or
    that too few requests were answered.
    """
    async with running_rounds(folder, SIZES[servers]) as rounds:
        end_s = time.monotonic() + seconds
        for seed in itertools.count(first_seed):
            if time.monotonic() > end_s:
                break
            print(await rounds.run(seed), flush=True)  # noqa: T201
        answered, asked = rounds.outcomes["whole"], rounds.outcomes.total()
        others = {what: count for what, count in rounds.outcomes.items() if what != "whole"}
        print(f"{answered} of {asked} answered whole and right, {others}")  # noqa: T201
        if asked >= ENOUGH:
            assert answered >= GOAL * asked, f"{answered / asked:.4%} are less than {GOAL:.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--servers", type=int, choices=(1, 3), default=3)
    parser.add_argument("--seed", type=int, default=1, help="seed of the first round")
    parser.add_argument("--seconds", type=float, default=300.0)
    found = parser.parse_args()
    configure_logging("error", "console")
    with tempfile.TemporaryDirectory(prefix="kvmesh-chaos-") as folder:
        uvloop.run(run(Path(folder), found.servers, found.seed, found.seconds))


if __name__ == "__main__":
    main()
