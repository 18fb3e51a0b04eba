"""Engines that leave a running fleet, and what others are given before."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.members.loads import Demand
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.warming.kept_prompts import Kept, KeptPrompts
from kvmesh.core.warming.leaving import next_home, worth_moving
from kvmesh.core.warming.newcomers import Allowance, WarmOptions
from kvmesh.core.warming.plan import Candidate, WarmBounds, plan_prompts
from kvmesh_lab.simulator.fleet.engine import FleetEngine
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.replicas import At
from kvmesh_lab.simulator.fleet.request import WARM, Errand, FleetRequest, Passage
from kvmesh_lab.simulator.fleet.router import FleetRouter

AGAIN_S: Final = 2.0
_WAIT_S: Final = 0.25
"""As `app.serve.hand_over`."""


class Fleet(NamedTuple):
    """What joins and leaves act on: `at` enters what is done later, `run` hands an engine a request
    that is no client's.
    """

    routers: Sequence[FleetRouter]
    engines: Sequence[FleetEngine]
    at: At
    run: Callable[[Passage, float], None]


class _Leaver(NamedTuple):
    worker: WorkerId
    gone_s: float
    queue: list[Kept[FleetRequest]]


class Leaving:
    """Drains the engines of `options.leaves`. With `options.hand_over` the first router has others
    compute what is worth most of what only a leaver keeps, one prompt at a time.

    `moved` are the places in the trace of those prompts, `tokens` what was computed of them;
    `held_alone` those of the prompts that only a leaver kept when it began to.
    """

    def __init__(
        self, options: FleetOptions, fleet: Fleet, kept: KeptPrompts[FleetRequest]
    ) -> None:
        self.allowance = Allowance(0.0)
        self.moved: list[int] = []
        self.tokens = 0
        self._fleet = fleet
        self._kept = kept
        self._size = options.engine.block_size
        self._options = options.hand_over or WarmOptions(share=0.0)
        self._drain_s = options.drain_s
        self._sent: dict[str, tuple[_Leaver, WorkerId]] = {}
        self._given: dict[WorkerId, int] = {}
        for number, due_s in options.leaves:
            fleet.at(due_s, partial(self._leave, number))

    def answered(self, passage: Passage, now: float) -> bool:
        """Take what an engine computed, and have the next prompt sent; False: not one of these."""
        found = self._sent.pop(passage.model.request_id, None)
        if found is None:
            return False
        leaver, home = found
        tokens = passage.model.prompt_tokens - passage.model.cached_tokens
        self.tokens += tokens
        self.allowance.spend(tokens)
        self._given[home] = self._given.get(home, 0) + tokens
        for router in self._fleet.routers:
            router.sequences.finish(passage.model.request_id)
        self._next(leaver, now)
        return True

    def _leave(self, number: int, now: float) -> None:
        worker = self._fleet.engines[number].worker
        for router in self._fleet.routers:
            membership = router.scheduler.workers.membership
            membership.observe(worker, membership.epoch(worker) or 0, now, draining=True)
        if self._options.share:
            self._begin(_Leaver(worker, now + self._drain_s, []), now)

    def _begin(self, leaver: _Leaver, now: float) -> None:
        """Plan what is worth it of what the leaver keeps now."""
        if now >= leaver.gone_s:
            return
        scheduler = self._fleet.routers[0].scheduler
        leaving = scheduler.workers.membership.draining()
        candidates: list[Candidate[FleetRequest]] = []
        for one in self._kept.prompts():
            held = scheduler.overlaps.find(one.hashes, now).overlaps
            candidate = worth_moving(one, held, leaver.worker, leaving)
            if candidate is not None:
                candidates.append(candidate)
        staying = len(scheduler.workers.everyone(now))
        room = int(self._options.fill * self._fleet.engines[0].model.pool.usable_blocks) * staying
        bounds = WarmBounds(
            tokens=int(self.allowance.tokens),
            room=room * self._size,
            least_rate=self._options.moved_rate,
        )
        plan = plan_prompts(self._kept.rates(now), candidates, 1, self._size, bounds)
        leaver.queue.extend(prompt for prompt, _ in reversed(plan))
        self._next(leaver, now)

    def _next(self, leaver: _Leaver, now: float) -> None:
        """Send the next prompt once the worker is idle that it would go to."""
        if not leaver.queue:
            self._fleet.at(now + AGAIN_S, partial(self._begin, leaver))
        elif now < leaver.gone_s and not self._send(leaver, leaver.queue[-1], now):
            self._fleet.at(now + _WAIT_S, partial(self._next, leaver))

    def _send(self, leaver: _Leaver, prompt: Kept[FleetRequest], now: float) -> bool:
        scheduler, request = self._fleet.routers[0].scheduler, prompt.what
        hashes = BlockHashes.of(request.hashes, self._size)
        asked = RouteRequest("", hashes, request.trace.input_tokens, streams=False)
        home = next_home(scheduler.explain(asked, now), self._given)
        if home.wait_ms > self._options.idle_ms:
            return False
        leaver.queue.pop()
        if home.overlap_blocks >= hashes.blocks:
            self._next(leaver, now)
            return True
        place = next(n for n, one in enumerate(self._fleet.engines) if one.worker == home.worker)
        passage = Passage(Errand(request, 0, now), place, 0, touch=WARM)
        name = passage.model.request_id
        demand = Demand(request.trace.input_tokens, home.uncached_tokens, streams=False)
        for router in self._fleet.routers:
            router.sequences.add(name, home.worker, demand, now)
        self._sent[name] = leaver, home.worker
        self.moved.append(request.trace.index)
        self._fleet.run(passage, now)
        return True
