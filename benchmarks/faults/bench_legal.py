"""Odd answers that are legal, through a router: how many does it take for failures?

Each fleet of engines has one dialect; its answers come whole and in pieces, as reads find them.
None may be taken for bad: no attempt fails, nobody is ejected, every answer reaches its client.

    python -m benchmarks.faults.bench_legal            100,000 answers
    python -m benchmarks.faults.bench_legal --answers 3000 --seed 7
"""

import argparse
from collections import Counter
from random import Random
from typing import Final

import msgspec
import uvloop

from benchmarks.faults.legal_answers import LegalAnswer, LegalAnswers
from benchmarks.proxy.bench_request import Engines, Front
from kvmesh.observe import configure_logging
from kvmesh.transport.http.upstream.client import UpstreamRequest, UpstreamSink
from kvmesh.transport.http.upstream.response_head import ResponseHead

ANSWERS: Final = 100_000
FLEETS: Final = 100


class _Call:
    """A request at an engine, as far as a router may want to end it."""

    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class LegalEngines(Engines):
    """Gives each request the answer that was drawn for it, for as long as it is wanted."""

    drawn: LegalAnswer
    _call: _Call

    def send(self, request: UpstreamRequest, sink: UpstreamSink) -> object:
        super().send(request, sink)
        self._call = _Call()
        return self._call

    def answer_all(self) -> None:
        while self._waiting:
            super().answer_all()

    def answer(self, sink: UpstreamSink) -> None:
        head, call = ResponseHead(200, list(self.drawn.headers)), self._call
        *pieces, last = self.drawn.pieces
        if not pieces:
            sink.on_whole(head, last)
            return
        sink.on_head(head)
        for piece in pieces:
            if not call.cancelled:
                sink.on_body(piece)
        if not call.cancelled:
            sink.on_end(last)


class Verdicts(msgspec.Struct, frozen=True):
    """What a router made of answers. `failures` are attempts by kind, `ends` requests by outcome
    and class of status.
    """

    answers: int
    failures: dict[str, int]
    ejections: int
    ends: dict[str, int]
    first: bytes = b""

    @property
    def false(self) -> int:
        """Return how many were taken for bad."""
        return sum(self.failures.values())


def judge_legal(answers: int, seed: int) -> Verdicts:
    """Have one fleet give so many answers."""

    async def work() -> Verdicts:
        front = Front(1, LegalEngines, LegalAnswers.models)
        engines, context = front.engines, front.context
        assert isinstance(engines, LegalEngines)
        legal = LegalAnswers(Random(seed))
        first = b""
        for _ in range(answers):
            engines.drawn = drawn = legal.draw()
            front.serve([_request(drawn)], 1)
            if not first and context.counters.attempts_failed:
                first = drawn.body + b"\n" + b"|".join(drawn.pieces)
        failures: Counter[str] = Counter()
        for (_, kind), count in context.counters.failures.as_dict().items():
            failures[kind] += count
        ends = {f"{how} {what}": n for (how, what), n in context.counters.ends.items() if n}
        ejections = context.workers.membership.health.ejections
        front.close()
        return Verdicts(answers, dict(failures), ejections, ends, first)

    return uvloop.run(work())


def _request(drawn: LegalAnswer) -> bytes:
    head = f"POST {drawn.path} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(drawn.body)}\r\n\r\n"
    return head.encode() + drawn.body


def main() -> None:
    configure_logging("error", "console")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=ANSWERS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    fleets = min(FLEETS, options.answers)
    total: Counter[str] = Counter()
    for fleet in range(fleets):
        found = judge_legal(options.answers // fleets, options.seed * FLEETS + fleet)
        total.update({"answers": found.answers, "taken for bad": found.false})
        total.update({"ejections": found.ejections, **found.failures, **found.ends})
        if found.false:
            print(f"fleet {fleet}: {found.failures}\n{found.first[:2000]!r}")
    for name, count in total.items():
        print(f"{count:10,}  {name}")
    whole = total["finished 2xx"] == total["answers"]
    raise SystemExit(bool(total["taken for bad"] or total["ejections"] or not whole))


if __name__ == "__main__":
    main()
