"""Engines that join a running fleet, and what they are given before they serve; prompts are kept
for those that leave, too.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.warming.kept_prompts import Kept, KeptPrompts, Sent
from kvmesh.core.warming.newcomers import Allowance, Newcomers, WarmOptions
from kvmesh.core.warming.plan import Candidate, WarmBounds, plan_prompts
from kvmesh_lab.simulator.fleet.engine import FleetEngine
from kvmesh_lab.simulator.fleet.leaving import Fleet, Leaving
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.replicas import At
from kvmesh_lab.simulator.fleet.request import WARM, Errand, FleetRequest, Passage
from kvmesh_lab.simulator.fleet.router import FleetRouter

LOOK_S: Final = 0.25
"""As `app.serve.warmer`."""

_TOKEN_BYTES: Final = 4


class Joining:
    """Has the engines of `options.joins` be members from their time on. With `options.warm` routers
    keep prompts, and the first of them sends newcomers what is worth most, one at a time.

    `run` hands an engine a request that is no client's. `serves_s` is when each newcomer was let
    in, `warmed_tokens` what each had computed before. `leaving` are those of `options.leaves`.
    """

    def __init__(
        self,
        options: FleetOptions,
        routers: Sequence[FleetRouter],
        engines: Sequence[FleetEngine],
        at: At,
        run: Callable[[Passage, float], None],
    ) -> None:
        self.serves_s: dict[WorkerId, float] = {}
        self.warmed_tokens = Counter[WorkerId]()
        self._size = options.engine.block_size
        self._routers = routers
        self._engines = engines
        self._at = at
        self._run = run
        self._warm = options.warm or WarmOptions(share=0.0)
        self._kept = KeptPrompts[FleetRequest]()
        self._keeps = options.warm is not None or options.hand_over is not None
        self._allowance = Allowance((options.hand_over or self._warm).share)
        self.leaving = Leaving(options, Fleet(routers, engines, at, run), self._kept)
        self.leaving.allowance = self._allowance
        self._computed = 0
        self._queues: dict[WorkerId, list[FleetRequest]] = {}
        self._newcomers = [Newcomers(self._warm, one.scheduler) for one in routers]
        for newcomers in self._newcomers[1:]:
            newcomers.sends = False
        for number, due_s in options.joins:
            for router in routers:
                router.scheduler.workers.membership.remove(engines[number].worker)
            at(due_s, partial(self._join, number))
        for router, newcomers in zip(routers, self._newcomers, strict=True):
            router.scheduler.workers.membership.screens.append(newcomers.screen)
        if options.joins or options.hand_over:
            at(LOOK_S, self._look)

    def sent(self, request: FleetRequest, now: float) -> None:
        """Keep a prompt that is sent."""
        if self._keeps and request.hashes:
            size = _TOKEN_BYTES * request.trace.input_tokens
            hashes = BlockHashes.of(request.hashes, self._size)
            self._kept.add(hashes, Sent(request, size), self._size, now)

    def answered(self, passage: Passage, now: float) -> None:
        """Note how much an engine computed; the next one of what it is given follows."""
        computed = passage.model.prompt_tokens - passage.model.cached_tokens
        if passage.touch is not WARM:
            self._computed += computed
            return
        if self.leaving.answered(passage, now):
            return
        self.warmed_tokens[self._engines[passage.engine].worker] += computed
        self._allowance.spend(computed)
        self._next(passage.engine, now)

    def _join(self, number: int, now: float) -> None:
        for router in self._routers:
            router.scheduler.workers.membership.add(self._engines[number].worker, now)
            router.scheduler.workers.everyone(now)

    def _look(self, now: float) -> None:
        capacity = self._engines[0].model.pool.usable_blocks * self._size
        self._allowance.earn(self._computed, 1, capacity)
        for router, newcomers in zip(self._routers, self._newcomers, strict=True):
            newcomers.armed = bool(self._warm.share) and len(self._kept) > 0
            newcomers.look(now, held=bool(router.waiting))
        for number, engine in enumerate(self._engines):
            worker = engine.worker
            if worker in self._newcomers[0].waiting and worker not in self._queues:
                room = int(self._warm.fill * capacity)
                bounds = WarmBounds(tokens=int(self._allowance.tokens), room=room)
                plan = self._plan(bounds, now)
                self._queues[worker] = [prompt.what for prompt, _ in reversed(plan)]
                self._next(number, now)
        for worker in self._routers[0].scheduler.workers.everyone(now):
            self.serves_s.setdefault(worker, now)
        self._at(now + LOOK_S, self._look)

    def _plan(self, bounds: WarmBounds, now: float) -> list[tuple[Kept[FleetRequest], int]]:
        scheduler = self._routers[0].scheduler
        candidates: list[Candidate[FleetRequest]] = []
        for one in self._kept.prompts():
            held = scheduler.overlaps.find(one.hashes, now).overlaps
            candidates.append(Candidate(one, 0, max(held.values(), default=0)))
        engines = len(scheduler.workers.everyone(now)) + 1
        return plan_prompts(self._kept.rates(now), candidates, engines, self._size, bounds)

    def _next(self, number: int, now: float) -> None:
        worker = self._engines[number].worker
        queue = self._queues[worker]
        if worker not in self._newcomers[0].waiting:
            return
        if not queue:
            for newcomers in self._newcomers:
                newcomers.done(worker)
            return
        self._run(Passage(Errand(queue.pop(), 0, now), number, 0, touch=WARM), now)
