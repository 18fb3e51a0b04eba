"""A meta-router and one router behind it, as one process: `python -m benchmarks.cost.together PORT
COMMAND`. The meta-router is at PORT, COMMAND starts the router, on another port than is in it.
"""

import signal
import subprocess
import sys
from types import FrameType

from benchmarks.proxy.peers import free_port, meta_router


def main() -> int:
    port, *command = sys.argv[1:]
    own = str(free_port())
    behind = [one.replace(f"--http-port={port}", f"--http-port={own}") for one in command]
    before = meta_router(int(port), [f"http://127.0.0.1:{own}"])
    started = [subprocess.Popen(behind), subprocess.Popen(before)]

    def end(_signal: int, _frame: FrameType | None) -> None:
        for one in started:
            one.terminate()

    signal.signal(signal.SIGTERM, end)
    return max(one.wait() for one in started)


if __name__ == "__main__":
    sys.exit(main())
