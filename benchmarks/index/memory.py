"""What one index grows by when it is loaded, alone in this process: `index_memory PEER WxE`."""

import gc
import sys
from pathlib import Path

from benchmarks.index.peers import DynamoPeer, OurPeer, find_dynamo
from benchmarks.index.workload import Workload


def anonymous_bytes() -> int:
    """Return the process's anonymous resident memory (Linux), else all that is resident."""
    sizes: dict[str, int] = {}
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name in {"RssAnon", "VmRSS"}:
            sizes[name] = int(value.split()[0]) * 1024
    return sizes.get("RssAnon", sizes.get("VmRSS", 0))


def main() -> None:
    name, size = sys.argv[1:]
    workers, entries = map(int, size.split("x"))
    workload = Workload(workers, entries)
    core = find_dynamo()
    if name == "dynamo" and not isinstance(core, str):
        theirs = DynamoPeer(core, workload)
        messages = theirs.messages(workload.loads)
        gc.collect()
        before = anonymous_bytes()
        theirs.apply(messages)
    else:
        ours = OurPeer(workload)
        journal = ours.messages(workload.loads)
        gc.collect()
        before = anonymous_bytes()
        ours.apply(journal)
    gc.collect()
    print((anonymous_bytes() - before) / workload.entries)


if __name__ == "__main__":
    main()
