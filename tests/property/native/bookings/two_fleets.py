"""The same workers, and a booking, in the model and in the compiled core."""

import random

from kvmesh._native import Booking, Loads, Ratio, WorkerState
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.formulas import COSTS
from kvmesh.core.cost.weighing import Weighing
from kvmesh.core.workers.info import LoadReport, WorkerInfo
from kvmesh.core.workers.loads import MOST_TOKENS
from kvmesh.core.workers.speeds import new_speeds
from tests.reference.workers import loads as model

W = WorkerId("w")


def make_bookings(
    name: str, tokens: int, uncached: int, keys: int, *, streams: bool
) -> tuple[model.Booking, Booking]:
    """Return a booking as the model has it, and as the compiled core does."""
    tokens, uncached = min(tokens, MOST_TOKENS), min(uncached, tokens, MOST_TOKENS)
    needs = (tokens, uncached, uncached, 0.0, 0.0, 0.0, streams, tuple(range(keys)), None)
    blocks = (tokens // 7, uncached // 5)
    return model.Booking(name, W, "", *needs, *blocks), Booking(name, W, "", *needs, *blocks)


class TwoFleets:
    """The same workers twice: a cost is asked of `pure` in Python, of `native` in C."""

    def __init__(self, seed: int, workers: int) -> None:
        self.rng = rng = random.Random(seed)
        pure: list[WorkerState] = []
        native: list[WorkerState] = []
        for number in range(workers):
            name = WorkerId(f"w{number:03d}")
            factor = rng.choice([1.0, 1.0, rng.uniform(0.3, 3.0)])
            capacity = rng.choice([0, 50, 500, 1 << 30])
            blank = rng.choice([0, 3, capacity])
            price = rng.choice([(0.0, 0.0), (0.0, 700.0), (rng.random(), rng.uniform(0.0, 1e5))])
            bookings = [
                (f"r{one}", rng.randrange(1000), rng.randrange(1000))
                for one in range(rng.choice([0, 0, 1, 5]))
            ]
            info, report = WorkerInfo(), LoadReport()
            twins = (
                WorkerState(name, Loads(name), Ratio(), info, report),
                WorkerState(name, Loads(name), Ratio(), info, report),
            )
            for twin in twins:
                twin.prefill.factor = factor
                twin.capacity_blocks, twin.blank_blocks = capacity, blank
                twin.failure_share, twin.lost_ms = price
                for place, given in enumerate(bookings):
                    booking = make_bookings(*given, 6, streams=True)[1]
                    twin.loads.begin(booking, 10.0 + place / 100)
            pure.append(twins[0])
            native.append(twins[1])
        self.pure, self.native = tuple(pure), tuple(native)
        self.known = {one.worker: one for one in native}
        self.speeds = new_speeds()
        self.speeds.steps.step_tokens = rng.choice([0.0, 33.3])
        self.speeds.finished(W, 0.7, 90)

    def weighing(self, cost: str) -> Weighing:
        rng = self.rng
        overlaps = {one.worker: rng.randint(1, 99) for one in self.pure if rng.random() < 0.5} | {
            WorkerId("stranger"): 3
        }
        prompt_tokens = rng.randrange(600)
        table, weight = COSTS[cost].weights, rng.choice([0.0, 1.0, 2.5])
        own = {"overlap_score_weight": weight} if "overlap_score_weight" in table else {}
        return Weighing(
            now=10.0 + rng.choice([-1.0, 0.0, 0.01, 0.3, 9.0]),
            policy=cost,
            cost=COSTS[cost],
            block_size=16,
            prompt_tokens=prompt_tokens,
            request_blocks=-(-prompt_tokens // 16),
            output_blocks=rng.randrange(20),
            overlaps=overlaps,
            groups=[],
            keys=list(range(6)),
            weights=table.make(own, "test"),
            speeds=self.speeds,
            arrivals_per_ms=rng.choice([0.0, 0.004]),
        )
