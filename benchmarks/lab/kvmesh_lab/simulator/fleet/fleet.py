"""Engines and routers in virtual time: the production decisions without a network or a GPU."""

from collections.abc import Sequence
from functools import partial
from math import isfinite
from typing import Final

import xxhash

from kvmesh.core.blocks.events import Event, WorkerId
from kvmesh.core.cost.selection import Random
from kvmesh.core.index.index import KvIndex
from kvmesh.core.routing.decision import Decision, RouterOptions
from kvmesh.errors import NoWorkerError, RequestError, UnattainableError
from kvmesh_lab.mocker.model.faults import Fault
from kvmesh_lab.mocker.model.request import Step
from kvmesh_lab.report.outcome import RequestOutcome
from kvmesh_lab.simulator.fleet.agenda import Agenda
from kvmesh_lab.simulator.fleet.course import Course
from kvmesh_lab.simulator.fleet.engine import FleetEngine, make_engines
from kvmesh_lab.simulator.fleet.faults import SlowDown, make_plans
from kvmesh_lab.simulator.fleet.joining import Joining
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.oracle import Oracle
from kvmesh_lab.simulator.fleet.outcome import attempt_end, lost, served
from kvmesh_lab.simulator.fleet.peers import ACCESS_LABEL, FleetPeer
from kvmesh_lab.simulator.fleet.replicas import Action, Replicas
from kvmesh_lab.simulator.fleet.request import WARM, Errand, FleetRequest, Passage
from kvmesh_lab.simulator.fleet.router import AttemptEnd, FleetRouter
from kvmesh_lab.simulator.fleet.seeing import Seeing

GROW_TOKENS: Final = 16
"""A router hears of an answer's growth each so many tokens, as from its proxy."""

TOUCH_EVERY_S: Final = 0.5
"""Routers look so often which contexts are to be touched."""

_REFUSED: Final = 400
_RETRIED: Final = frozenset({0, 429, 500, 502, 503, 504})
"""Statuses after which another engine may do better; 0: none that is HTTP."""


class SimulatedFleet:
    """Plays requests against engines and routers; the same arguments give the same outcomes.

    Nothing but the engines takes time. Requests are spread over the replicas by their number,
    the same under every policy. `outcomes` grows in the order requests end. `busy_s` is how long
    each engine computed until the last request was sent: then they only run empty. `retried` counts
    the requests that were sent to a second engine.
    """

    def __init__(
        self,
        options: FleetOptions,
        policy: RouterOptions,
        requests: Sequence[FleetRequest],
        rng: Random,
        *,
        speedup: float = 1.0,
        live: int = 0,
    ) -> None:
        """Send at `speedup` times the recorded rate, pauses as recorded, or keep `live` programs
        under way. `policy` has the engines' block size.

        Mode direct leaves the choice to an `Oracle`.
        """
        self.outcomes: list[RequestOutcome] = []
        self.busy_s: list[float] = []
        self.retried = 0
        self.now = 0.0
        self.options = options
        self._requests = requests
        self._course = Course(requests, speedup, live)
        self.engines = make_engines(options, strides=policy.mode != "direct")
        # A blind router asks nothing of an index: the same outcomes, a fifth sooner.
        index = KvIndex() if options.kv_events and policy.mode == "kv" else None
        workers = [(one.worker, one.model.pool.usable_blocks) for one in self.engines]
        labels = frozenset[str]() if options.peer is None else frozenset({ACCESS_LABEL})
        self.routers = tuple(
            FleetRouter(f"router-{number}", policy, workers, index, rng, labels)
            for number in range(options.routers)
        )
        for router in self.routers:
            router.hold(options)
            if options.turns is not None:
                router.govern(options.turns)
                if options.touches is not None:
                    router.touch(options.touches)
            router.aim(options)
            if options.prefillers:
                router.divide(options)
        self.agenda = Agenda[Action]()
        self._at = self.agenda.enter
        self._replicas = Replicas(self.routers, options.sync_delay_s, self._at, self._take)
        self._seeing = Seeing(options, self.routers, self._replicas, self._at)
        self._index = index
        self.joining = Joining(options, self.routers, self.engines, self._at, self._run)
        self._oracle = Oracle() if policy.mode == "direct" else None
        self._plans = make_plans(options.faults, options.seed)
        self._engine_of = {one.worker: place for place, one in enumerate(self.engines)}
        self._sent = 0
        for request, due_s in self._course.begin():
            self._at(due_s, partial(self._send, request))
        for one in options.slow_downs:
            self._at(one.from_s, partial(self._slow_down, one, one.factor))
            if isfinite(one.until_s):
                self._at(one.until_s, partial(self._slow_down, one, 1.0 / one.factor))
        if options.touches is not None:
            self._at(TOUCH_EVERY_S, self._touch)
        for number, engine in enumerate(self.engines):
            share = (number + 1) / options.engines
            self._at(options.report_interval_s * share, partial(self._report, engine))

    def advance(self, events: int) -> bool:
        """Do about so many events; False when every request has ended."""
        for _ in range(events):
            if len(self.outcomes) == len(self._requests):
                return False
            self.step()
        return True

    def run(self) -> list[RequestOutcome]:
        """Play everything; return the outcomes."""
        while self.advance(1024):
            pass
        return self.outcomes

    def send_at(self, at_s: float, request: FleetRequest) -> None:
        """Have a request sent that is none of the trace's."""
        self._at(at_s, partial(self._send, request))

    def step(self) -> None:
        """Do what happens next, for who plays several fleets."""
        self.now, action = self.agenda.take()
        action(self.now)

    def _send(self, request: FleetRequest, now: float) -> None:
        self._sent += 1
        if self._sent == len(self._requests):
            self.busy_s = [engine.busy_until(now) for engine in self.engines]
        number = xxhash.xxh3_64_intdigest(b"%d" % request.trace.index, self.options.seed % 2**64)
        place = number % len(self.routers)
        self.joining.sent(request, now)
        self._attempt(Errand(request, place, now), now)

    def _attempt(self, errand: Errand, now: float) -> None:
        """Have an engine chosen that has not failed the request."""
        named: WorkerId | None = None
        if self._oracle is not None:
            usable = frozenset(self.routers[errand.router].scheduler.workers.everyone(now))
            usable = usable.difference(errand.failed)
            left = [one for one in self.engines if one.worker in usable] or self.engines
            named = left[self._oracle.choose(left, errand.request, now)].worker
        router = self.routers[errand.router]
        try:
            prefill = router.prefill(errand, now)
            if prefill is not None:
                self._place(errand, prefill, prefills=True)
                return
            decision = router.ask(errand, now, named)
        except UnattainableError as error:
            errand.refuse(error)
            self._lose(errand, now)
            return
        except NoWorkerError:
            self._lose(errand, now)
            return
        if decision is None:
            errand.held_from_s = now
            self._replicas.load_fell(errand.router, now)
        else:
            self._fetch(errand, decision)

    def _take(self, errand: Errand, decision: Decision | None) -> None:
        """Go on with a request whose router held it."""
        errand.held_s += self.now - errand.held_from_s
        if decision is None:
            self._lose(errand, self.now)
        else:
            self._fetch(errand, decision)

    def _fetch(self, errand: Errand, decision: Decision) -> None:
        """Place a request once its prompt has come to the engine, if another one computed it."""
        splitting = self.routers[errand.router].splitting
        if splitting is None or not errand.moving:
            self._place(errand, decision)
            return
        here_s = self.now + splitting.fetch_s(decision, self.now)
        self._at(here_s, lambda _: self._place(errand, decision))

    def _place(self, errand: Errand, decision: Decision, *, prefills: bool = False) -> None:
        """Hand a request to the engine chosen for it."""
        now, place = self.now, self._engine_of[decision.worker]
        engine, plan = self.engines[place], self._plans.get(place)
        fault = None if plan is None else plan.draw(now)
        self.retried += len(errand.failed) == 1
        passage = Passage(errand, place, decision.overlap_blocks, fault, prefills=prefills)
        self._open_peer(passage, decision)
        if fault is not None and fault.kind not in ("slow", "cut"):
            self._spoil(passage, fault, now)
            return
        try:
            engine.model.add(passage.model, now)
        except RequestError as error:
            end = AttemptEnd(decision.request_id, engine.worker, "refused", _REFUSED)
            self.routers[errand.router].attempt_ended(end, now)
            passage.blame(engine.worker, "refused", _REFUSED)
            errand.detail = str(error)
            self._lose(errand, now)
            return
        engine.passages[decision.request_id] = passage
        self._seeing.sent(passage, decision, now)
        if not engine.awake:
            engine.awake = True
            self._at(now, partial(self._begin, engine))
        elif engine.cut(now):
            self._at(engine.ends_s, partial(self._end, engine, engine.turns))

    def _open_peer(self, passage: Passage, decision: Decision) -> None:
        """Let a request see the cache that its router named."""
        brought, peer = decision.brought, self.options.peer
        if brought is not None and brought.source is not None and peer is not None:
            source = self.engines[self._engine_of[brought.source]]
            passage.model.peer = FleetPeer(source, self.engines[passage.engine], peer)

    def _spoil(self, passage: Passage, fault: Fault, now: float) -> None:
        """Let a request meet a fault in which its engine does not work on it."""
        if fault.kind == "hang":
            self._replicas.placed(passage.router, passage.model.request_id, now)
            gone_s = passage.errand.sent_s + self.options.client_timeout_s
            self._at(max(now, gone_s), partial(self._fail, passage, fault))
        else:
            self._fail(passage, fault, now)

    def _fail(self, passage: Passage, fault: Fault, now: float) -> None:
        """End an attempt that failed, and have another engine tried if that makes sense."""
        errand, worker = passage.errand, self.engines[passage.engine].worker
        errand.moving = False
        request_id = passage.model.request_id
        end = AttemptEnd(request_id, worker, fault.kind, fault.status, fault.retry_after_s)
        self._replicas.ended(passage.router, end, now)
        passage.blame(worker, fault.name, fault.status)
        # After these the client has left, or has a part of its answer.
        final = fault.kind in ("hang", "cut") or fault.status not in _RETRIED
        if final or len(errand.failed) > self.options.retries:
            self._lose(errand, now)
        else:
            self._at(now, partial(self._attempt, errand))

    def _begin(self, engine: FleetEngine, now: float) -> None:
        ends_s = engine.begin(now)
        if ends_s is not None:
            self._at(ends_s, partial(self._end, engine, engine.turns))
        elif (arrives_s := engine.model.lower.arrives_s()) is not None:
            self._at(arrives_s, partial(self._wake, engine))

    def _wake(self, engine: FleetEngine, now: float) -> None:
        """Have an engine go on that waited for blocks, unless something else woke it before."""
        if not engine.awake:
            engine.awake = True
            self._begin(engine, now)

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

    def _slow_down(self, which: SlowDown, factor: float, now: float) -> None:
        """Have what engines begin from now on take so many times as long as before."""
        for number in which.engines:
            engine = self.engines[number]
            engine.slowness *= factor
            if engine.awake and engine.cut(now):
                self._at(engine.ends_s, partial(self._end, engine, engine.turns))

    def _ended(self, engine: FleetEngine, step: Step, now: float) -> None:
        for model in step.finished:
            passage = engine.passages.pop(model.request_id)
            passage.pause(engine.step_number + 1)
            self._see(passage, partial(self._answered, passage), now)
        if step.events and self._index is not None:
            events = engine.fold(step.events)
            self._at(now + self.options.event_delay_s, partial(self._publish, engine, events))

    def _see(self, passage: Passage, action: Action, now: float) -> None:
        """Do `action` as soon as what the engine brings is seen: of a slow one, later."""
        if passage.factor == 1.0:
            action(now)
        else:
            self._at(passage.seen_s(now), action)

    def _touch(self, now: float) -> None:
        """Have engines use prompts again that routers want kept."""
        for place, router in enumerate(self.routers):
            for touch, request in router.plan_touches(now):
                engine = self._engine_of[touch.worker]
                passage = Passage(Errand(request, place, now), engine, 0, touch=touch)
                self._run(passage, now)
        self._at(now + TOUCH_EVERY_S, self._touch)

    def _run(self, passage: Passage, now: float) -> None:
        """Hand what an engine will not refuse to it."""
        engine = self.engines[passage.engine]
        engine.model.add(passage.model, now)
        engine.passages[passage.model.request_id] = passage
        if not engine.awake:
            engine.awake = True
            self._at(now, partial(self._begin, engine))
        elif engine.cut(now):
            self._at(engine.ends_s, partial(self._end, engine, engine.turns))

    def _answered(self, passage: Passage, now: float) -> None:
        self.joining.answered(passage, now)
        if passage.touch is WARM:
            return
        if passage.touch is not None:
            touches = self.routers[passage.router].touches
            assert touches is not None, "a router that plans touches"
            computed = passage.model.prompt_tokens - passage.model.cached_tokens
            touches.done(passage.touch, computed, now)
            return
        fault = passage.fault
        if fault is not None and fault.kind == "cut":
            self._fail(passage, fault, now)
            return
        engine, router = self.engines[passage.engine], self.routers[passage.router]
        if self._seeing.ends:
            end = attempt_end(passage, engine, began=self._seeing.tokens)
            self._replicas.ended(passage.router, end, now)
        if passage.prefills:
            passage.errand.moving = True
            self._attempt(passage.errand, now)
            return
        self.outcomes.append(served(passage, engine, router.name, now))
        self._follow(passage.errand.request, now)

    def _prefilled(self, engine: FleetEngine, step: Step, now: float) -> None:
        number = engine.step_number
        for model in step.preempted:
            engine.passages[model.request_id].pause(number)
        for model in step.prefilled:
            passage = engine.passages[model.request_id]
            passage.open_step = number
            engine.expect_growth(passage, passage.grown_tokens + GROW_TOKENS)
            if passage.first_token_s is None:
                passage.first_token_s = passage.seen_s(now)
                splitting = self.routers[passage.router].splitting
                if splitting is not None:
                    splitting.began(model.request_id, now)
                if self._seeing.tokens:
                    reported = partial(self._replicas.first_token, passage.router, model.request_id)
                    self._see(passage, reported, now)

    def _grew(self, engine: FleetEngine, passage: Passage, now: float) -> None:
        tokens = passage.grown_tokens = passage.produced_tokens(engine.step_number)
        engine.expect_growth(passage, tokens + GROW_TOKENS)
        request_id = passage.model.request_id
        if self._seeing.tokens:
            reported = partial(self._replicas.grew, passage.router, request_id, tokens)
            self._see(passage, reported, now)

    def _publish(self, engine: FleetEngine, events: Sequence[Event], now: float) -> None:
        del now
        assert self._index is not None
        for event in events:
            self._index.apply(engine.worker, event)

    def _report(self, engine: FleetEngine, now: float) -> None:
        self._seeing.report(engine, now)
        if engine is self.engines[0]:
            self._replicas.tell_fetches(now)
            for router in self.routers:
                router.scheduler.grow_unseen(now)
        self._at(now + self.options.report_interval_s, partial(self._report, engine))

    def _lose(self, errand: Errand, now: float) -> None:
        """End a request that nobody answered."""
        self.outcomes.append(lost(errand, self.routers[errand.router].name, now))
        self._follow(errand.request, now)

    def _follow(self, ended: FleetRequest, now: float) -> None:
        """Have those sent that waited for its end."""
        for request, due_s in self._course.ended(ended, now):
            self._at(due_s, partial(self._send, request))
