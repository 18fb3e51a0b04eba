import random
from dataclasses import dataclass
from typing import get_args

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvmesh.core.blocks.events import ROOT, Stored, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.index.approx import new_approx
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.health import Answer
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import SERVED, Attempt, Verdict, failed_attempt, status_attempt
from kvmesh.core.members.worker_info import LoadReport, Trust, WorkerInfo
from kvmesh.core.routing.decision import Decision, RouteRequest, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.errors import NoWorkerError

BLOCK_SIZE = 4
WORKERS = [WorkerId(f"w{number}") for number in range(9)]
LONGEST = 40

workers = st.sampled_from(WORKERS)
families = st.integers(0, 2)
depths = st.integers(0, LONGEST)
attempts = st.sampled_from(
    [
        SERVED,
        failed_attempt("cut", 0.7),
        failed_attempt("refused"),
        failed_attempt("busy"),
        status_attempt(500, 0.002),
        status_attempt(503, 1.5),
        status_attempt(429, retry_after_s=2.0),
        status_attempt(400),
        Attempt(Verdict.PROMPT, "reset"),
    ]
)


def family_hashes(family: int, blocks: int) -> list[int]:
    return [family * 1000 + depth + 1 for depth in range(blocks)]


@dataclass
class Way:
    scheduler: Scheduler
    membership: Membership
    index: KvIndex


def make_way(options: RouterOptions, seed: int) -> Way:
    membership, index = Membership(), KvIndex()
    scheduler = Scheduler(
        options,
        random.Random(seed),
        membership=membership,
        sequences=new_sequences(BLOCK_SIZE),
        index=index,
        routed=new_approx(),
    )
    return Way(scheduler, membership, index)


class TwoWays(RuleBasedStateMachine):
    """One life led twice: by the short costs, weighed in full."""

    ways: list[Way]

    @initialize(
        cost=st.sampled_from(["prefill-decode", "predicted-time"]),
        weight=st.sampled_from([0.0, 0.5, 1.0, 7.0]),
        decode_weight=st.sampled_from([0.0, 0.05, 1.0]),
        contention=st.sampled_from([0.0, 0.05, 2.0]),
        followers=st.sampled_from([0.0, 2.0, 50.0]),
        step_tokens=st.sampled_from([0.0, 700.0]),
        seed=st.integers(0, 3),
        fleet=st.integers(1, len(WORKERS)),
    )
    def begin(
        self,
        *,
        cost: str,
        weight: float,
        decode_weight: float,
        contention: float,
        followers: float,
        step_tokens: float,
        seed: int,
        fleet: int,
    ) -> None:
        weights = {
            "decode_weight": decode_weight,
            "contention": contention,
            "followers": followers,
        }
        options = RouterOptions(
            cost=cost,
            block_size=BLOCK_SIZE,
            overlap_score_weight=weight,
            weights=weights if cost == "predicted-time" else {},
        )
        self.now = 100.0
        self.numbers = 0
        self.live: list[str] = []
        self.ways = [make_way(options, seed) for _ in range(2)]
        self.ways[1].scheduler.trace = True
        for way in self.ways:
            way.scheduler.speeds.steps.step_tokens = step_tokens
            for worker in WORKERS[:fleet]:
                way.membership.add(worker, self.now)

    @rule(
        family=families,
        blocks=depths,
        rest=st.integers(0, BLOCK_SIZE - 1),
        streams=st.booleans(),
        expected=st.sampled_from([0, 3, 40]),
        model=st.sampled_from(["", "m", "n"]),
        own_weight=st.none() | st.sampled_from([0.0, 3.0]),
        excluded=st.frozensets(workers, max_size=2),
    )
    def schedule(
        self,
        *,
        family: int,
        blocks: int,
        rest: int,
        streams: bool,
        expected: int,
        model: str,
        own_weight: float | None,
        excluded: frozenset[WorkerId],
    ) -> None:
        self.numbers += 1
        request = RouteRequest(
            request_id=f"r{self.numbers}",
            hashes=BlockHashes.of(family_hashes(family, blocks), BLOCK_SIZE),
            prompt_tokens=blocks * BLOCK_SIZE + rest,
            expected_output_tokens=expected,
            streams=streams,
            model=model,
            overlap_score_weight=own_weight,
            excluded=excluded,
        )

        answers = [self._answer(way, request) for way in self.ways]

        assert answers[0] == answers[1]
        if isinstance(answers[0], tuple):
            self.live.append(request.request_id)

    def _answer(self, way: Way, request: RouteRequest) -> tuple[object, ...] | str:
        try:
            decision: Decision = way.scheduler.schedule(request, self.now).record.decision
        except NoWorkerError as error:
            return str(error)
        line = decision.formula_line(decision.worker)
        return decision.worker, decision.score, decision.overlap_blocks, decision.considered, line

    @rule(pause=st.sampled_from([0.0, 0.001, 0.02, 0.5, 4.0, -0.5]))
    def wait(self, pause: float) -> None:
        self.now += pause

    @rule(data=st.data(), output=st.integers(0, 30))
    def progress(self, data: st.DataObject, output: int) -> None:
        if self.live:
            request_id = data.draw(st.sampled_from(self.live))
            for way in self.ways:
                way.scheduler.first_token(request_id, self.now)
                way.scheduler.grow(request_id, output, self.now)

    @rule(data=st.data(), attempt=attempts)
    def finish(self, data: st.DataObject, attempt: Attempt) -> None:
        if self.live:
            request_id = data.draw(st.sampled_from(self.live))
            self.live.remove(request_id)
            for way in self.ways:
                way.scheduler.finish(request_id, self.now, attempt)

    @rule(worker=workers, family=families, blocks=depths)
    def store(self, worker: WorkerId, family: int, blocks: int) -> None:
        event = Stored(ROOT, pack_hashes(family_hashes(family, blocks)))
        for way in self.ways:
            way.index.apply(worker, event)

    @rule(
        worker=workers,
        models=st.sampled_from([(), ("m",), ("m", "n")]),
        total_blocks=st.sampled_from([0, 10, 1000]),
        trust=st.sampled_from(Trust),
    )
    def describe(
        self, worker: WorkerId, models: tuple[str, ...], total_blocks: int, trust: Trust
    ) -> None:
        for way in self.ways:
            way.scheduler.workers.describe(worker, WorkerInfo(models, total_blocks, trust))

    @rule(
        worker=workers,
        running=st.integers(0, 5),
        waiting=st.integers(0, 5),
        used=st.integers(0, 50),
        times=st.integers(1, 3),
    )
    def report(self, worker: WorkerId, running: int, waiting: int, used: int, times: int) -> None:
        for way in self.ways:
            for _ in range(times):
                way.scheduler.workers.report(worker, LoadReport(running, waiting, used, 100))

    @rule(worker=workers)
    def join(self, worker: WorkerId) -> None:
        for way in self.ways:
            way.membership.add(worker, self.now)

    @rule(worker=workers, back=st.booleans())
    def leave(self, worker: WorkerId, back: bool) -> None:
        for way in self.ways:
            way.membership.remove(worker)
            way.scheduler.remove_worker(worker)
            if back:
                way.membership.add(worker, self.now)
        sequences = self.ways[0].scheduler.sequences
        self.live = [one for one in self.live if sequences.bookings.get(one)]

    @rule(worker=workers, attempt=attempts, number=st.integers(0, 9))
    def note(self, worker: WorkerId, attempt: Attempt, number: int) -> None:
        for way in self.ways:
            way.scheduler.workers.note(worker, attempt, self.now, f"elsewhere {number}")

    @rule(number=st.integers(0, 9))
    def forgive(self, number: int) -> None:
        for way in self.ways:
            way.scheduler.workers.forgive(f"elsewhere {number}", self.now)

    @rule()
    def settle_prices(self) -> None:
        for way in self.ways:
            way.scheduler.workers.settle_prices(self.now)

    @rule(worker=workers, answer=st.sampled_from(get_args(Answer)))
    def answer(self, worker: WorkerId, answer: Answer) -> None:
        for way in self.ways:
            way.membership.answered(worker, answer, self.now)

    @invariant()
    def all_loads_agree(self) -> None:
        statistics = [way.scheduler.sequences.statistics() for way in self.ways]
        assert statistics[0] == statistics[1]
        assert statistics[0].active_requests == len(self.live)


TestTwoWays = TwoWays.TestCase
