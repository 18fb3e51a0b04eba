"""A request in one compiled call and its end in another, beside Dynamo's service that books, too.

    python -m benchmarks.index.bench_decide --quick
    python -m benchmarks.index.bench_decide --sizes 64x1000000 --tokens 8192

`--sizes` are workers x (worker, block) entries that they hold. A prompt of `--tokens` token ids
(512) is given as packed ids to us, as a list to Dynamo's `SelectionService`; both choose, book,
learn of the first token and of the end, one request after the other, over the same caches.
Processor time of the whole process, us a request. Above 512 workers, and without
ai-dynamo-runtime 1.6.1, only our own figures are printed: it takes a ZMQ socket a worker.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from random import Random

from benchmarks.index.peers import OurPeer, find_dynamo
from benchmarks.index.selection import DynamoSelection, dynamo_selection
from benchmarks.index.workload import BLOCK_SIZE, Request, Workload
from benchmarks.measure import (
    BenchOptions,
    Candidate,
    Sample,
    compare,
    parse_options,
    quiet_collector,
    report,
)
from kvmesh._native import scan
from kvmesh.app.prompts.request_wishes import NO_WISHES
from kvmesh.core.dispatch.dispatch import Dispatch, Ending
from kvmesh.core.dispatch.dispatched import at_once
from kvmesh.core.dispatch.placing import Placer, ScannedPrompt
from kvmesh.core.engines.sse import Usage
from kvmesh.core.index.approx import new_approx
from kvmesh.core.insight.decision_log import DecisionLog
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import SERVED
from kvmesh.core.members.worker_info import WorkerInfo
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.core.routing.scheduler import Scheduler

SIZES = ["4x50000", "8x100000", "64x200000", "512x500000", "2048x500000"]
MOST_SOCKETS = 512
OUTPUT_TOKENS = 100
BODY = b'{"model": "", "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]}'


class Ours:
    """A router's core with workers that hold what the workload says."""

    def __init__(self, workload: Workload) -> None:
        peer = OurPeer(workload)
        peer.apply(peer.messages(workload.loads))
        membership = Membership()
        scheduler = Scheduler(
            RouterOptions(block_size=BLOCK_SIZE),
            Random(1),
            membership=membership,
            sequences=new_sequences(BLOCK_SIZE),
            index=peer.index,
            routed=new_approx(thinned=True),
        )
        for name in peer.names:
            membership.add(name, 1.0)
            scheduler.workers.describe(name, WorkerInfo(total_blocks=1 << 16))
        dispatch = Dispatch(
            scheduler,
            DecisionLog(),
            time.monotonic,
            lambda _worker, _distrust: None,
            follows_events=True,
        )
        self._placer, self._dispatch = Placer(dispatch), dispatch
        scanned = scan(BODY, True)
        assert scanned is not None, "a plain chat is scanned"
        self._scanned = scanned
        self._numbers = count()
        self._now = 1000.0

    def live(self, requests: Sequence[Request]) -> Sample:
        """Let each request live, and return what it cost."""
        placer, scanned, now, clock = (
            self._placer, self._scanned, self._now, time.process_time_ns,
        )  # fmt: skip
        names = [b"r%d" % next(self._numbers) for _ in requests]
        spent = [0, 0, 0]
        with quiet_collector():
            for request, name in zip(requests, names, strict=True):
                now += 0.002
                start = clock()
                placed = placer.decide(ScannedPrompt(scanned, request.packed), name, NO_WISHES, now)
                booked = clock()
                if placed is None or isinstance(placed, int | float):
                    raise RuntimeError(f"{name!r}: the compiled core did not take this request")
                one = at_once(placed, NO_WISHES, None)
                self._dispatch.seen(one, 1, now + 0.0005)
                seen = clock()
                usage = Usage(len(request.tokens), OUTPUT_TOKENS, None)
                end = Ending(SERVED, "finished", 200, usage)
                self._dispatch.finished(one, end, now + 0.001)
                spent = [
                    before + after
                    for before, after in zip(
                        spent, (booked - start, seen - booked, clock() - seen), strict=True
                    )
                ]
        self._now = now
        figures = [one / len(requests) / 1000 for one in spent]
        names_of = ("choose and book, us", "first token, us", "end, us")
        return {"all, us": sum(figures), **dict(zip(names_of, figures, strict=True))}


def live_at_dynamo(service: DynamoSelection, requests: Sequence[Request]) -> Sample:
    return {"all, us": service.reserve_ns(requests) / len(requests) / 1000}


def measure(size: str, tokens: int, options: BenchOptions) -> None:
    workers, entries = map(int, size.split("x"))
    workload = Workload(workers, entries)
    requests = workload.requests(tokens // BLOCK_SIZE, options.size(full=200, quick=60))
    dynamo = find_dynamo()
    candidates: dict[str, Candidate] = {}
    with ExitStack() as stack:
        if not isinstance(dynamo, str) and workers <= MOST_SOCKETS:
            service = stack.enter_context(dynamo_selection(dynamo, workload))
            candidates["dynamo"] = partial(live_at_dynamo, service, requests)
        ours: Callable[[Sequence[Request]], Sample] = Ours(workload).live
        candidates["kvmesh"] = partial(ours, requests)
        title = f"{size}: a request of {tokens} tokens"
        report(compare(title, candidates, options.rounds), options)


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--sizes", nargs="+", default=None)
    parser.add_argument("--tokens", type=int, default=512)
    found, rest = parser.parse_known_args()
    options = parse_options(__doc__ or "", rest)
    for size in found.sizes or (SIZES[1:3] if options.quick else SIZES):
        measure(size, found.tokens, options)


if __name__ == "__main__":
    main()
