"""What turns of agents' programs bring: on simulated fleets, or live beside other routers.

`python -m benchmarks.bench_programs` plays `benchmarks.programs.bench_programs`; with `live` as its
first argument `benchmarks.programs.bench_live`, with `agentx` `benchmarks.programs.bench_agentx`,
where aiperf judges. Each has its own options (`--help`).
"""

import sys
from collections.abc import Sequence

from benchmarks.programs import bench_agentx, bench_live, bench_programs


def main(arguments: Sequence[str]) -> None:
    """Play what is asked for."""
    if arguments[:1] == ["live"]:
        bench_live.main(arguments[1:])
    elif arguments[:1] == ["agentx"]:
        bench_agentx.main(arguments[1:])
    else:
        bench_programs.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
