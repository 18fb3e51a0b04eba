"""Engines and routers in virtual time: the production decisions without a network or a GPU."""

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import Final

import xxhash

from kvmesh.core.decision import Decision, RouterOptions
from kvmesh.core.engine_request import Step
from kvmesh.core.events import Event, WorkerId
from kvmesh.core.fleet_engine import FleetEngine, make_engines
from kvmesh.core.fleet_options import FleetOptions
from kvmesh.core.fleet_oracle import Oracle
from kvmesh.core.fleet_request import FleetRequest, Passage
from kvmesh.core.fleet_router import FleetRouter
from kvmesh.core.index import KvIndex
from kvmesh.core.late_binding import LOOK_EVERY_S, PAUSE_S
from kvmesh.core.report import RequestOutcome
from kvmesh.core.selection import Random
from kvmesh.errors import RequestError

GROW_TOKENS: Final = 16
"""A router hears of an answer's growth each so many tokens, as from its proxy."""

PEER_GROW_TOKENS: Final = 64
"""Peers hear of it about once a second."""

MS: Final = 1000.0
_SERVED: Final = 200
_REFUSED: Final = 400

Action = Callable[[float], None]


class SimulatedFleet:
    """Plays requests against engines and routers; the same arguments give the same outcomes.

    Nothing but the engines takes time. Requests are spread over the replicas by their number,
    the same under every policy. `outcomes` grows in the order requests end. `busy_s` is how long
    each engine computed until the last request was sent: then they only run empty.
    """

    def __init__(
        self,
        options: FleetOptions,
        policy: RouterOptions,
        requests: Sequence[FleetRequest],
        rng: Random,
        *,
        speedup: float = 1.0,
    ) -> None:
        """Send at `speedup` times the recorded rate. `policy` has the engines' block size.

        Mode direct leaves the choice to an `Oracle`.
        """
        self.outcomes: list[RequestOutcome] = []
        self.busy_s: list[float] = []
        self.now = 0.0
        self.options = options
        self._requests = requests
        self._speedup = speedup
        self.engines = make_engines(options, strides=policy.mode != "direct")
        # A blind router asks nothing of an index: the same outcomes, a fifth sooner.
        index = KvIndex() if options.kv_events and policy.mode == "kv" else None
        workers = [(one.worker, one.model.pool.usable_blocks) for one in self.engines]
        self.routers = tuple(
            FleetRouter(f"router-{number}", policy, workers, index, rng)
            for number in range(options.routers)
        )
        for router in self.routers:
            router.hold(options.max_backlog_ms, options.queue_policy)
        self._looked_s = [-inf] * options.routers
        self._look_due_s = [inf] * options.routers
        self._index = index
        self._oracle = Oracle() if policy.mode == "direct" else None
        self._engine_of = {one.worker: place for place, one in enumerate(self.engines)}
        self._heap: list[tuple[float, int, Action]] = []
        self._pushed = self._sent = 0
        for request in requests:
            if request.is_first:
                self._at(request.trace.timestamp_ms / MS / speedup, partial(self._send, request))
        for number, engine in enumerate(self.engines):
            share = (number + 1) / options.engines
            self._at(options.report_interval_s * share, partial(self._report, engine))

    def advance(self, events: int) -> bool:
        """Do about so many events; False when every request has ended."""
        heap, total = self._heap, len(self._requests)
        for _ in range(events):
            if len(self.outcomes) == total:
                return False
            self.now, _, action = heappop(heap)
            action(self.now)
        return True

    def run(self) -> list[RequestOutcome]:
        """Play everything; return the outcomes."""
        while self.advance(1024):
            pass
        return self.outcomes

    def _at(self, time_s: float, action: Action) -> None:
        """Do `action` then; of one time, in the order of calls."""
        self._pushed += 1
        heappush(self._heap, (time_s, self._pushed, action))

    def _send(self, request: FleetRequest, now: float) -> None:
        self._sent += 1
        if self._sent == len(self._requests):
            self.busy_s = [engine.busy_until(now) for engine in self.engines]
        number = xxhash.xxh3_64_intdigest(b"%d" % request.trace.index, self.options.seed % 2**64)
        place = number % len(self.routers)
        named: WorkerId | None = None
        if self._oracle is not None:
            named = self.engines[self._oracle.choose(self.engines, request, now)].worker
        decision = self.routers[place].ask(request, now, named)
        if decision is None:
            self._load_fell(place, now)
        else:
            self._place(place, request, now, decision)

    def _place(
        self, router_place: int, request: FleetRequest, sent_s: float, decision: Decision
    ) -> None:
        """Hand a request to the engine chosen for it."""
        now, router, place = self.now, self.routers[router_place], self._engine_of[decision.worker]
        engine = self.engines[place]
        passage = Passage(request, router_place, place, decision.overlap_blocks, sent_s)
        try:
            engine.model.add(passage.model, now)
        except RequestError as error:
            router.scheduler.finish(decision.request_id, now)
            self._conclude(passage, now, str(error))
            return
        engine.passages[decision.request_id] = passage
        self._tell_peers(passage, partial(_placed, router, decision.request_id))
        if not engine.awake:
            engine.awake = True
            self._at(now, partial(self._begin, engine))
        elif engine.cut(now):
            self._at(engine.ends_s, partial(self._end, engine, engine.turns))

    def _load_fell(self, place: int, now: float) -> None:
        """Have a router look soon whether the turn of a request that waits has come."""
        if self.routers[place].waiting:
            self._look_at(place, max(now, self._looked_s[place] + PAUSE_S))

    def _look_at(self, place: int, due_s: float) -> None:
        if due_s < self._look_due_s[place]:
            self._look_due_s[place] = due_s
            self._at(due_s, partial(self._look, place))

    def _look(self, place: int, now: float) -> None:
        if now != self._look_due_s[place]:
            return
        self._look_due_s[place], self._looked_s[place] = inf, now
        for request, sent_s, decision in self.routers[place].release(now):
            self._place(place, request, sent_s, decision)
        if self.routers[place].waiting:
            self._look_at(place, now + LOOK_EVERY_S)

    def _begin(self, engine: FleetEngine, now: float) -> None:
        ends_s = engine.begin(now)
        if ends_s is not None:
            self._at(ends_s, partial(self._end, engine, engine.turns))

    def _end(self, engine: FleetEngine, turn: int, now: float) -> None:
        """Pass on what the step or run under way brought, and begin the next."""
        if turn != engine.turns:
            return
        step = engine.step
        engine.end(now)
        if step is not None and (step.preempted or step.prefilled):
            self._prefilled(engine, step, now)
        for passage in engine.grown():
            self._grew(engine, passage, now)
        if step is not None:
            self._ended(engine, step, now)
        self._begin(engine, now)

    def _ended(self, engine: FleetEngine, step: Step, now: float) -> None:
        for model in step.finished:
            passage = engine.passages.pop(model.request_id)
            passage.pause(engine.step_number + 1)
            self.routers[passage.router].scheduler.finish(model.request_id, now)
            self._load_fell(passage.router, now)
            self._tell_peers(passage, partial(_finished, model.request_id))
            self._conclude(passage, now)
        if step.events and self._index is not None:
            events = engine.fold(step.events)
            self._at(now + self.options.event_delay_s, partial(self._publish, engine, events))

    def _prefilled(self, engine: FleetEngine, step: Step, now: float) -> None:
        number = engine.step_number
        for model in step.preempted:
            engine.passages[model.request_id].pause(number)
        for model in step.prefilled:
            passage = engine.passages[model.request_id]
            passage.open_step = number
            engine.expect_growth(passage, passage.grown_tokens + GROW_TOKENS)
            if passage.first_token_s is None:
                passage.first_token_s = now
                self.routers[passage.router].scheduler.first_token(model.request_id, now)
                self._load_fell(passage.router, now)
                self._tell_peers(passage, partial(_first_token, model.request_id))

    def _grew(self, engine: FleetEngine, passage: Passage, now: float) -> None:
        tokens = passage.grown_tokens = passage.produced_tokens(engine.step_number)
        engine.expect_growth(passage, tokens + GROW_TOKENS)
        request_id = passage.model.request_id
        self.routers[passage.router].scheduler.grow(request_id, tokens, now)
        if not tokens % PEER_GROW_TOKENS:
            self._tell_peers(passage, partial(_grew, request_id, tokens))

    def _tell_peers(self, passage: Passage, news: Callable[[FleetRouter, float], None]) -> None:
        if len(self.routers) > 1:
            told = partial(self._hear, passage.router, news)
            self._at(self.now + self.options.sync_delay_s, told)

    def _hear(self, sender: int, news: Callable[[FleetRouter, float], None], now: float) -> None:
        for place, router in enumerate(self.routers):
            if place != sender:
                news(router, now)
                self._load_fell(place, now)

    def _publish(self, engine: FleetEngine, events: Sequence[Event], now: float) -> None:
        del now
        assert self._index is not None
        for event in events:
            self._index.apply(engine.worker, event)

    def _report(self, engine: FleetEngine, now: float) -> None:
        report = engine.report()
        for router in self.routers:
            router.scheduler.workers.report(engine.worker, report)
        self._at(now + self.options.report_interval_s, partial(self._report, engine))

    def _conclude(self, passage: Passage, now: float, refusal: str = "") -> None:
        engine, trace = self.engines[passage.engine], passage.request.trace
        first = passage.first_token_s
        outcome = RequestOutcome(
            index=trace.index,
            session=trace.session,
            sent_ms=passage.sent_s * MS,
            lag_ms=0.0,
            latency_ms=(now - passage.sent_s) * MS,
            ttft_ms=None if first is None else (first - passage.sent_s) * MS,
            itl_ms=engine.pauses_ms(passage),
            prompt_tokens=trace.input_tokens,
            cached_tokens=passage.model.cached_tokens,
            output_tokens=passage.model.generated,
            worker=engine.worker,
            router=self.routers[passage.router].name,
            overlap_blocks=passage.overlap_blocks,
            status=_REFUSED if refusal else _SERVED,
            error="refused" if refusal else "",
            detail=refusal,
        )
        self.outcomes.append(outcome)
        if passage.request.following is None:
            return
        following = self._requests[passage.request.following]
        delay, recorded_s = following.trace.delay_ms, following.trace.timestamp_ms / MS
        due_s = max(now, recorded_s / self._speedup)
        if delay is not None:
            due_s = now + delay / MS / self._speedup
        self._at(due_s, partial(self._send, following))


def _placed(sender: FleetRouter, request_id: str, peer: FleetRouter, now: float) -> None:
    booked = sender.demand(request_id)
    if booked is not None:
        worker, demand = booked
        peer.sequences.add(request_id, worker, demand, now, owner=sender.name)
        if demand.hashes is not None:
            peer.scheduler.overlaps.record(worker, demand.hashes, now)


def _first_token(request_id: str, peer: FleetRouter, now: float) -> None:
    peer.scheduler.first_token(request_id, now)


def _grew(request_id: str, tokens: int, peer: FleetRouter, now: float) -> None:
    peer.scheduler.grow(request_id, tokens, now)


def _finished(request_id: str, peer: FleetRouter, now: float) -> None:
    peer.scheduler.finish(request_id, now)
