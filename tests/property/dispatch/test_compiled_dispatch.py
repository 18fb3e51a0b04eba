"""The way of a request holds against its naive model: the same decisions, the same state."""

import json
import os
import random
from collections import Counter
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvmesh._native import Booking, BookingOutbox, Placed, scan
from kvmesh.app.prompts.request_wishes import NO_WISHES, RequestWishes
from kvmesh.core.admission.queue import AdmissionOptions
from kvmesh.core.blocks.events import ENDS, ROOT, Removed, Reuse, Stored, WorkerId
from kvmesh.core.blocks.graded import grade
from kvmesh.core.blocks.hashing import (
    BlockHashes,
    extend_hash,
    lookahead_digest,
    namespace_root,
    pack_hashes,
)
from kvmesh.core.chat.chat import ChatInput
from kvmesh.core.cost.arm_tally import Counter as ArmCounter
from kvmesh.core.cost.arms import Arms
from kvmesh.core.cost.catalogue import PUBLISHED
from kvmesh.core.cost.formulas import COSTS
from kvmesh.core.cost.targets import Targets
from kvmesh.core.cost.terms import NO_FLEET
from kvmesh.core.cost.weights import weights_of
from kvmesh.core.dispatch.dispatch import Dispatch, Ending
from kvmesh.core.dispatch.dispatched import Dispatched, at_once
from kvmesh.core.dispatch.placing import Placer, ScannedPrompt
from kvmesh.core.engines.sse import Usage
from kvmesh.core.index.approx import new_approx
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.snapshot_reading import decode_snapshot
from kvmesh.core.index.snapshot_writing import Position, encode_snapshot
from kvmesh.core.insight.decision_log import DecisionLog
from kvmesh.core.insight.predictions import Distrust
from kvmesh.core.members.loads import Demand, new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import SERVED, UNKNOWN, Attempt, failed_attempt
from kvmesh.core.members.worker_info import AdapterReport, LoadReport, Trust, WorkerInfo
from kvmesh.core.prompts.byte_tokenizer import ByteTokenizer
from kvmesh.core.routing.decision import Decision, RouteRequest, RouterMode, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.routing.sessions import SessionOptions, Sessions
from kvmesh.errors import NoWorkerError
from tests.reference.decision_log import naive_log
from tests.reference.routing import dispatch as naive
from tests.reference.routing.scheduler import NaiveScheduler
from tests.reference.workers.speed_report import speed_report

WORKERS = [WorkerId(f"w{number}") for number in range(6)]
QUICK = ("predicted-time", "prefill-decode", "lmetric")
MODES: tuple[RouterMode, ...] = ("kv", "round-robin", "random", "least-loaded", "power-of-two")
MODEL = "m"
SIZE = 4
OTHER_SIZES = (6, 16)
LABELS = {one: frozenset({"zone=b" if one > "w2" else "zone=a"}) for one in WORKERS}
SALTS = st.sampled_from(["", "", "tenant"])
TEXTS = [
    "a" * 40,
    "a" * 40 + "b" * 90,
    "a" * 40 + "c" * 33,
    "x" * 200,
    "short",
    "é" * 30,
    "a" * 40 + "b" * 1500,
]

tokenizer = ByteTokenizer()


def ids_of(text: str) -> str:
    return tokenizer.pack_chat(ChatInput([{"role": "user", "content": text}]))


def hashes_of(text: str, size: int = SIZE, salt: str = "") -> BlockHashes:
    ids = ids_of(text)
    packed = ids.encode("utf-32-le")
    root = namespace_root(cache_salt=salt)
    return BlockHashes(ids if len(ids) % size else ids[:-1], size, root, packed)


def ends_of(text: str, size: int, lookahead: int, step: int) -> bytes:
    """Return the keys of ends behind each so many blocks of a prompt."""
    hashes = hashes_of(text, size)
    keys = []
    for depth in range(step, hashes.blocks + 1, step):
        key, behind = hashes.upto(depth)[depth - 1], hashes.behind(depth, lookahead)
        if lookahead:
            key = extend_hash(key, lookahead_digest(behind or b""))
        keys.append(key)
    return pack_hashes(keys)


def known_of(booking: Booking) -> list[int] | None:
    """Return the hashes that a booking of one's own keeps."""
    assert not isinstance(booking.hashes, bytes)
    return None if booking.hashes is None else list(booking.hashes.upto(1 << 40))


def same_name(worker: WorkerId) -> WorkerId:
    """Return another object of that name, as the next message brings it."""
    return WorkerId("".join(worker))


class Side:
    """One router core with its own state, equal to the other's as long as both do the same."""

    def __init__(
        self,
        options: RouterOptions,
        seed: int,
        *,
        max_blocks: int,
        whole_per_s: int,
        spec: bool = False,
    ) -> None:
        membership, events = Membership(), max_blocks > 0
        self.index = KvIndex(max_blocks) if events else None
        self.routed = new_approx(thinned=True)
        self.scheduler = (NaiveScheduler if spec else Scheduler)(
            options,
            random.Random(seed),
            membership=membership,
            sequences=new_sequences(SIZE),
            index=self.index,
            routed=self.routed,
        )
        self.outbox = BookingOutbox(self.scheduler.sequences, 1)
        self.hints = new_approx(graded=True)
        self.scheduler.listen(self.hints)
        self.scheduler.sessions = Sessions(SessionOptions(affinity="hard"))
        new_log = naive_log if spec else DecisionLog
        self.log = new_log(capacity=64, whole_per_s=whole_per_s, max_candidates=64)
        self.log.left_out = lambda _: ()  # type: ignore[assignment,return-value]
        self.doubts: list[tuple[WorkerId, Distrust]] = []
        self.follows_events = events
        self.dispatch: Dispatch | naive.Dispatch

    def distrust(self, worker: WorkerId, distrust: Distrust) -> None:
        self.doubts.append((worker, distrust))

    def view(self, now: float) -> dict[str, Any]:
        """Return everything that later decisions depend on, and what people see."""
        scheduler = self.scheduler
        sequences, speeds = scheduler.sequences, scheduler.speeds
        found: dict[str, Any] = {}
        for worker in WORKERS:
            loads = sequences.loads(worker)
            found[worker] = (
                [
                    getattr(loads, name)
                    for name in (
                        "prefill_tokens", "prompt_tokens", "active_requests", "active_blocks",
                        "expected_blocks", "silent", "progress_s",
                    )
                ],
                list(loads.prefilling),
                dict(loads.shared),
                speed_report(speeds, worker),
            )  # fmt: skip
        found["bookings"] = {
            name: [
                getattr(one, field)
                for field in (
                    "worker", "owner", "prompt_tokens", "uncached_tokens", "service_tokens",
                    "booked_s", "renewed_s", "output_s", "streams", "keys", "private_blocks",
                    "expected_blocks", "foreseen_blocks", "output_tokens", "prefilling",
                    "service_s", "turn", "keep_s",
                )
            ]
            + [known_of(one)]
            for name, one in sequences.bookings.items()
        }  # fmt: skip
        size = scheduler.options.block_size
        found["held"] = [scheduler.overlaps.find(hashes_of(text, size), now) for text in TEXTS]
        found["routed"] = self.routed.statistics()
        found["late"] = {one: list(kept) for one, kept in scheduler.late.waiting.items()}
        found["heard"] = self.hints.statistics()
        found["speeds"] = (
            speeds.fleet_ms_per_token,
            speeds.output_tokens,
            speeds.steps.step_tokens,
        )
        found["slo"] = scheduler.slo.statistics()
        found["fetches"] = len(scheduler.fetches), scheduler.fetches.tokens
        adapters = scheduler.workers.adapters
        found["adapters"] = adapters.load_ms, [adapters.held(one) for one in WORKERS]
        found["times"] = [
            scheduler.fetch_times.ms(one, {1: 100, 2: 50}, 0.5, now) for one in WORKERS
        ]
        arms = scheduler.arms
        found["arms"] = arms and arms.now and (arms.now.left, arms.now.counter.tally())
        found["lengths"] = scheduler.lengths.statistics()
        found["statistics"] = scheduler.statistics()
        found["tokens"] = [
            getattr(self.dispatch.tokens, name)
            for name in ("prompt", "reported", "predicted", "cached", "saved", "saved_s")
        ]
        found["accesses"] = self.dispatch.accesses.reports
        found["doubts"] = self.doubts
        # How many candidates are kept depends on whether each had to be weighed.
        found["log"] = msgspec.structs.replace(self.log.statistics(), candidates=0)
        totals = self.log.totals
        found["traffic"] = totals.rows(0)
        found["totals"] = [
            getattr(totals, name)
            for name in ("prompt_tokens", "output_tokens", "best_tokens", "predicted_tokens")
        ]
        found["histograms"] = [
            (one.total, one.cumulative())
            for one in (
                *(totals.ttft_s, totals.itl_s, totals.duration_s),
                *(totals.prompt_sizes, totals.output_sizes),
            )
        ]
        return found


class Spec(Side):
    """The naive model."""

    dispatch: naive.Dispatch
    scheduler: NaiveScheduler

    def __init__(self, options: RouterOptions, seed: int, **sizes: Any) -> None:
        super().__init__(options, seed, spec=True, **sizes)
        self.dispatch = naive.Dispatch(
            self.scheduler, self.log, self.distrust, follows_events=self.follows_events
        )


class Built(Side):
    """What is held against it."""

    dispatch: Dispatch

    def __init__(self, options: RouterOptions, seed: int, **sizes: Any) -> None:
        super().__init__(options, seed, **sizes)
        self.dispatch = Dispatch(
            self.scheduler,
            self.log,
            map(float, count()).__next__,
            self.distrust,
            follows_events=self.follows_events,
        )
        self.placer = Placer(self.dispatch)
        self.outbox = outbox = BookingOutbox(self.scheduler.sequences, 1)
        self.dispatch.publish_to(outbox)


def reported(decision: Decision) -> dict[str, Any]:
    found = {name: getattr(decision, name) for name in Decision.__struct_fields__ if name != "cost"}
    return found | {"arm": decision.arm and decision.arm.name}


WEIGHED = ("candidates", "scores", "fleet", "forecasts")


def told_alike(quick: Decision, spec: Decision) -> None:
    """Hold a compiled decision against the same one of `Dispatch`, which keeps all candidates where
    it had to weigh each.
    """
    found, expected = reported(quick), reported(spec) | {"request_id": quick.request_id}
    if quick.fleet != spec.fleet:
        assert quick.fleet == NO_FLEET
        assert quick.candidates == (spec.chosen,)
        assert quick.scores == (spec.score,)
        for name in WEIGHED:
            del found[name], expected[name]
    assert found == expected


def seen_of(record: Any) -> dict[str, Any]:
    names = (
        "request_id", "worker", "policy", "overlap_blocks", "request_blocks", "considered",
        "best_overlap_blocks", "by_cache", "prompt_tokens", "block_size", "capacity_blocks",
        "ms_per_token", "decided_s", "first_token_s", "ended_s", "state", "status", "attempts",
        "output_tokens", "reported", "forecast", "tenant", "ttft_ms",
    )  # fmt: skip
    return {name: getattr(record, name) for name in names}


WISHES: list[dict[str, Any]] = [
    {"labels": frozenset({"zone=a"})},
    {"session": "s"},
    {"session": "t"},
    {"pinned_worker": WORKERS[0]},
    {"pinned_worker": WORKERS[2]},
    {"allowed_workers": frozenset(WORKERS[2:4])},
    {"temperature": 0.5},
    {"mode": "random"},
    {"mode": "kv"},
    {"mode": "round-robin"},
    {"cost": "dynamo"},
    {"cost": "lmetric", "temperature": 1.5},
    {"overlap_score_weight": 0.5, "cost": "dynamo"},
    {"output_tokens": 900},
    {"tenant": "acme", "labels": frozenset({"zone=b"})},
    {"targets": Targets(ttft_ms=40.0)},
    {"targets": Targets(ttft_ms=1e6, tpot_ms=20.0), "priority": 2},
    {"targets": Targets(tpot_ms=0.5), "session": "s"},
    {"targets": Targets(ttft_ms=400.0), "temperature": 0.5},
    {"affinity": 7},
    {"affinity": 7, "keep_s": 300},
    {"keep_s": 3600},
]


class Asked(msgspec.Struct):
    """One request on both sides; `placed` None: it was not placed as it was scanned."""

    placed: Placed | None
    one: naive.Dispatched
    twin: Dispatched
    tokens: int = 0


WALKS = 20 if os.environ.get("HYPOTHESIS_PROFILE") == "mutants" else 120
"""Few under sanitizers, which look for what any walk would show."""


@settings(max_examples=WALKS, stateful_step_count=30, deadline=None)
class TwoWays(RuleBasedStateMachine):
    """Sends each request through the model on one side, through what was built on the other."""

    @initialize(
        mode=st.sampled_from([*MODES, "kv", "kv", "kv"]),
        cost=st.sampled_from([*QUICK, *QUICK, *COSTS]),
        blocks=st.sampled_from([0, 24, 1 << 20, 1 << 20]),
        seed=st.integers(0, 9),
        whole=st.sampled_from([0, 3, 1000]),
        predict=st.sampled_from([0.0, 5.0]),
    )
    def begin(
        self, mode: Any, cost: str, blocks: int, seed: int, whole: int, predict: float
    ) -> None:
        options = RouterOptions(
            mode=mode, cost=cost, block_size=SIZE, predict_ttl_s=predict, replica="r"
        )
        self.spec = Spec(options, seed, max_blocks=blocks, whole_per_s=whole)
        self.quick = Built(options, seed, max_blocks=blocks, whole_per_s=whole)
        self.now = 100.0
        self.asked: list[Asked] = []
        self.numbers = count()
        for worker in WORKERS[1:4]:
            self.join(worker, (), 0, Trust.EXACT, late=worker == WORKERS[2])
        self.size = SIZE
        self.blind = mode != "kv"

    @property
    def sides(self) -> tuple[Spec, Built]:
        return self.spec, self.quick

    @rule(
        worker=st.sampled_from(WORKERS),
        models=st.sampled_from([(), (MODEL,), ("other",)]),
        blocks=st.sampled_from([0, 20, 10_000]),
        trust=st.sampled_from([Trust.EXACT, Trust.EXACT, Trust.DEGRADED]),
        late=st.booleans(),
        own=st.sampled_from([0, 0, 0, SIZE, *OTHER_SIZES]),
    )
    def join(
        self,
        worker: WorkerId,
        models: Any,
        blocks: int,
        trust: Trust,
        *,
        late: bool = False,
        own: int = 0,
    ) -> None:
        for side in self.sides:
            name = same_name(worker)
            side.scheduler.workers.membership.add(name, self.now)
            info = WorkerInfo(
                models=models,
                total_blocks=blocks,
                trust=trust,
                labels=LABELS[worker],
                caches_late=late,
                block_size=own,
            )
            side.scheduler.workers.describe(name, info)

    @rule(worker=st.sampled_from(WORKERS))
    def leave(self, worker: WorkerId) -> None:
        for side in self.sides:
            side.scheduler.workers.membership.remove(worker)
            side.scheduler.remove_worker(worker)
            if side.index is not None:
                side.index.remove_worker(worker)

    @rule(
        worker=st.sampled_from(WORKERS),
        running=st.integers(0, 5),
        waiting=st.integers(0, 3),
        used=st.integers(0, 40),
    )
    def report(self, worker: WorkerId, running: int, waiting: int, used: int) -> None:
        report = LoadReport(running, waiting, used, 50)
        for side in self.sides:
            side.scheduler.workers.report(worker, report)

    @rule(
        worker=st.sampled_from(WORKERS),
        text=st.sampled_from(TEXTS),
        share=st.floats(0, 1),
        salt=SALTS,
        tier=st.sampled_from([0, 0, 0, 0, 1, 2]),
        own=st.sampled_from([0, 0, *OTHER_SIZES]),
    )
    def store(
        self,
        worker: WorkerId,
        text: str,
        share: float,
        salt: str = "",
        tier: int = 0,
        own: int = 0,
    ) -> None:
        hashes = hashes_of(text, own or self.size, salt).upto(1 << 40)
        run = pack_hashes(hashes[: int(share * len(hashes))])
        for side in self.sides:
            if side.index is not None:
                side.index.store(worker, ROOT, run, tier)

    @rule(sizes=st.sampled_from([(), OTHER_SIZES[:1], OTHER_SIZES]))
    def look_for(self, sizes: tuple[int, ...]) -> None:
        for side in self.sides:
            side.scheduler.look_for(sizes)

    @rule(
        worker=st.sampled_from(WORKERS),
        slots=st.integers(0, 2),
        names=st.sampled_from([(), ("lora",), ("lora", "other")]),
    )
    def hold_adapters(self, worker: WorkerId, slots: int, names: tuple[str, ...]) -> None:
        report = LoadReport(1, 0, 9, 50, adapters=AdapterReport(slots, names))
        for side in self.sides:
            side.scheduler.workers.report(worker, report)

    @rule(worker=st.sampled_from(WORKERS), text=st.sampled_from(TEXTS), clear=st.booleans())
    def remove(self, worker: WorkerId, text: str, clear: bool) -> None:
        hashes = hashes_of(text, self.size).upto(1 << 40)
        for side in self.sides:
            if side.index is not None and clear:
                side.index.clear(worker)
            elif side.index is not None:
                side.index.remove(worker, pack_hashes(hashes[-3:]))

    @rule(
        worker=st.sampled_from(WORKERS),
        text=st.sampled_from(TEXTS),
        rule=st.sampled_from([None, Reuse(), Reuse(0, 1), Reuse(1), Reuse(3, 1)]),
        step=st.integers(1, 7),
        gone=st.booleans(),
        own=st.sampled_from([0, 0, *OTHER_SIZES]),
    )
    def group(
        self, worker: WorkerId, text: str, rule: Reuse | None, step: int, gone: bool, own: int = 0
    ) -> None:
        """Give a worker a rule, and ends or fewer of them."""
        lookahead = 0 if rule is None else rule.lookahead
        keys = ends_of(text, own or self.size, lookahead, step)
        for side in self.sides:
            if side.index is None:
                continue
            if rule is not None:
                side.index.apply(worker, rule)
            event = Removed(keys, ENDS) if gone else Stored(ROOT, keys, ENDS)
            side.index.apply(worker, event)

    @rule(worker=st.sampled_from(WORKERS), text=st.sampled_from(TEXTS), share=st.floats(0, 1))
    def receive(self, worker: WorkerId, text: str, share: float) -> None:
        hashes = hashes_of(text, self.size).upto(1 << 40)
        blocks = int(share * len(hashes))
        for side in self.sides:
            side.scheduler.overlaps.receive(worker, grade(hashes, blocks), blocks, self.now)

    @rule(
        texts=st.lists(st.sampled_from(TEXTS), min_size=1, max_size=5),
        stream=st.booleans(),
        limit=st.sampled_from([None, 0, 1, 16, 500]),
        model=st.sampled_from([MODEL, "", "other"]),
        named=st.booleans(),
        seed=st.sampled_from([("", ""), ("", ""), ("tenant", ""), ("", "lora")]),
    )
    def ask(
        self,
        texts: list[str],
        stream: bool,
        limit: int | None,
        model: str,
        named: bool,
        seed: tuple[str, str],
    ) -> None:
        salt, adapter = seed
        for text in texts:
            self._ask(text, stream, limit, model, named, salt=salt, adapter=adapter)

    def _ask(
        self,
        text: str,
        stream: bool,
        limit: int | None,
        model: str,
        named: bool,
        *,
        wishes: RequestWishes = NO_WISHES,
        salt: str = "",
        adapter: str = "",
    ) -> None:
        visible = f"r{next(self.numbers)}"
        name = f"{visible}#r-1" if named else visible
        body = {"model": model, "stream": stream, "messages": [{"role": "user", "content": text}]}
        body |= {} if limit is None else {"max_tokens": limit}
        body |= {"cache_salt": salt} if salt else {}
        scanned = scan(json.dumps(body).encode(), True)
        assert scanned is not None
        assert scanned.salt == salt
        own = name if named else None
        root = namespace_root(cache_salt=salt)
        asked = ScannedPrompt(scanned, root=root, adapter=adapter)
        placed = self.quick.placer.decide(asked, visible.encode(), wishes, self.now, own)
        size = len(json.dumps(body).encode())
        output = (limit or 0) if wishes.output_tokens is None else wishes.output_tokens
        blind = self.blind and wishes.mode != "kv"
        request = RouteRequest(
            request_id=name,
            hashes=BlockHashes.of((), SIZE) if blind else hashes_of(text, self.size, salt),
            prompt_tokens=size // 4 if blind else len(ids_of(text)),
            expected_output_tokens=output,
            model=model,
            streams=stream,
            estimated=blind,
            mode=wishes.mode,
            cost=wishes.cost,
            temperature=wishes.temperature,
            overlap_score_weight=wishes.overlap_score_weight,
            pinned_worker=wishes.pinned_worker,
            allowed_workers=wishes.allowed_workers,
            labels=wishes.labels,
            session=wishes.session,
            tenant=wishes.tenant,
            targets=wishes.targets,
            priority=wishes.priority,
            adapter=adapter,
            affinity=wishes.affinity,
            keep_s=wishes.keep_s,
        )
        if placed is None or isinstance(placed, int | float):
            self._ask_both(request, text, visible, tried=placed is not None, salt=salt)
            return
        one, error = self._decide_by_model(request, visible)
        assert one is not None, error
        assert one.decision is not None
        assert placed.record.decision.request_id == visible
        told_alike(placed.record.decision, one.decision)
        self.asked.append(Asked(placed, one, at_once(placed, wishes, None)))

    @rule(text=st.sampled_from(TEXTS), wish=st.sampled_from(WISHES), stream=st.booleans())
    def wish(self, text: str, wish: dict[str, Any], stream: bool) -> None:
        """Ask for something of the worker, or of how it is chosen."""
        wishes = RequestWishes(**wish, chooses=True)
        self._ask(text, stream, 16, MODEL, True, wishes=wishes)

    @rule(ms=st.sampled_from([0.0, 0.0, 0.5, 20.0, 1e6]))
    def bound(self, ms: float) -> None:
        """Hold requests from now on where backlogs are longer; nobody waits on."""
        for side in self.sides:
            side.dispatch.binding.change(AdmissionOptions(max_backlog_ms=ms))

    def _ask_both(
        self, request: RouteRequest, text: str, visible: str, *, tried: bool = False, salt: str = ""
    ) -> None:
        one, error = self._decide_by_model(request, visible)
        # Hashes of its own: how far they are known depends on who asked for them before.
        own = BlockHashes.of((), SIZE) if request.estimated else hashes_of(text, self.size, salt)
        own.upto(own.blocks)
        request = msgspec.structs.replace(request, hashes=own)
        twin, twin_error = self._decide(request, visible, tried=tried)
        assert str(error) == str(twin_error)
        assert not (tried and one is not None)
        if one is not None and twin is not None:
            assert one.decision is not None
            assert twin.placed is not None
            told_alike(twin.placed.record.decision, one.decision)
            self.asked.append(Asked(None, one, twin))

    def _decide(
        self, request: RouteRequest, visible: str, *, tried: bool
    ) -> tuple[Dispatched | None, object]:
        """Return a request that was placed, or why it was not; what would wait is given up."""
        side = self.quick
        one = side.dispatch.enter(request, visible.encode())
        one.tried = tried
        try:
            answer = side.dispatch.decide(one, self.now)
        except NoWorkerError as error:
            return None, error
        if isinstance(answer, Placed):
            return one, None
        self._give_up(side, answer, request)
        return None, answer

    def _decide_by_model(
        self, request: RouteRequest, visible: str
    ) -> tuple[naive.Dispatched | None, object]:
        side = self.spec
        one = side.dispatch.enter(request, visible.encode())
        try:
            answer = side.dispatch.decide(one, self.now)
        except NoWorkerError as error:
            return None, error
        if isinstance(answer, Decision):
            side.outbox.placed(side.scheduler.sequences.bookings[request.request_id])
            return one, None
        self._give_up(side, answer, request)
        return None, answer

    def _give_up(self, side: Spec | Built, answer: object, request: RouteRequest) -> None:
        if answer is None:
            assert side.dispatch.binding.cancel(request.request_id)
            side.scheduler.slo.close(request.request_id)

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), more=st.sampled_from([1, 1, 5, 40]))
    def tokens(self, data: Any, more: int) -> None:
        self._see(data.draw(st.sampled_from(self.asked)), more)

    def _see(self, asked: Asked, more: int) -> None:
        asked.tokens += more
        first = self.spec.dispatch.seen(asked.one, asked.tokens, self.now)
        if first:
            self.spec.outbox.first_token(asked.one.request.request_id)
        assert self.quick.dispatch.seen(asked.twin, asked.tokens, self.now) == first

    @precondition(lambda self: self.asked)
    @rule(
        data=st.data(),
        usage=st.sampled_from([None, Usage(7, 3, None), Usage(42, 9, 20), Usage(42, 0, 0)]),
    )
    def serve(self, data: Any, usage: Usage | None) -> None:
        for _ in range(data.draw(st.integers(1, len(self.asked)))):
            self._serve(self.asked.pop(data.draw(st.integers(0, len(self.asked) - 1))), usage)

    def _serve(self, asked: Asked, usage: Usage | None) -> None:
        placed = asked.twin.placed
        if usage is not None and placed is not None and placed.teaches:
            # What answers teach of workers without events: unit/core/dispatch/test_learned.py.
            usage = msgspec.structs.replace(usage, cached_tokens=None)
        released = self._end_by_model(asked.one, SERVED, usage)
        end = Ending(SERVED, "finished", 200, usage)
        booking = self.quick.dispatch.finished(asked.twin, end, self.now)
        assert (booking is None) == (released is None)
        assert asked.twin.placed is not None
        assert seen_of(asked.twin.placed.record) == seen_of(asked.one.record)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def retry(self, data: Any) -> None:
        """Have a request's worker fail it, and try another."""
        asked = self.asked.pop(data.draw(st.integers(0, len(self.asked) - 1)))
        attempt = failed_attempt("reset", 0.5)
        assert asked.one.decision is not None
        failed = frozenset({asked.one.decision.worker})
        self.spec.outbox.ended(asked.one.request.request_id, attempt)
        self.spec.dispatch.release(asked.one, attempt, self.now)
        self.quick.outbox.ended(asked.twin.name, attempt)
        self.quick.dispatch.release(asked.twin, attempt, self.now)
        error = twin_error = ""
        try:
            answer: object = self.spec.dispatch.decide(asked.one, self.now, failed)
        except NoWorkerError as no_worker:
            answer, error = None, str(no_worker)
        if isinstance(answer, Decision):
            bookings = self.spec.scheduler.sequences.bookings
            self.spec.outbox.placed(bookings[asked.one.request.request_id])
        try:
            placed: object = self.quick.dispatch.decide(asked.twin, self.now, failed)
        except NoWorkerError as no_worker:
            placed, twin_error = None, str(no_worker)
        assert twin_error == error
        if isinstance(answer, Decision):
            assert isinstance(placed, Placed)
            told_alike(placed.record.decision, answer)
            assert placed.record.attempts > 1
            self.asked.append(asked)
            return
        assert str(placed) == str(answer)
        for side, one in ((self.spec, asked.one.request), (self.quick, asked.twin.request)):
            if answer is None and not error:
                self._give_up(side, None, one)

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), attempt=st.sampled_from([UNKNOWN, failed_attempt("reset", 0.5)]))
    def fail(self, data: Any, attempt: Attempt) -> None:
        self._fail(self.asked.pop(data.draw(st.integers(0, len(self.asked) - 1))), attempt)

    def _fail(self, asked: Asked, attempt: Attempt) -> None:
        released = self._end_by_model(asked.one, attempt, None)
        self.quick.outbox.ended(asked.twin.name, attempt)
        booking = self.quick.dispatch.release(asked.twin, attempt, self.now)
        assert (booking is None) == (released is None)
        end = Ending(attempt, "failed", 502)
        assert self.quick.dispatch.finished(asked.twin, end, self.now) is None
        assert asked.twin.placed is not None
        assert seen_of(asked.twin.placed.record) == seen_of(asked.one.record)

    def _end_by_model(
        self, one: naive.Dispatched, attempt: Attempt, usage: Usage | None
    ) -> Booking | None:
        self.spec.outbox.ended(one.request.request_id, attempt)
        released = self.spec.dispatch.release(one, attempt, self.now)
        state = "finished" if attempt is SERVED else "failed"
        status = 200 if attempt is SERVED else 502
        self.spec.dispatch.finished(one, attempt, state, status, usage, self.now)  # type: ignore[arg-type]
        return released

    @rule(
        cost=st.sampled_from([*QUICK, *QUICK, *COSTS]),
        weighed=st.booleans(),
        trial=st.sampled_from([False, False, False, True]),
    )
    def follow(self, cost: str, weighed: bool, trial: bool) -> None:
        """Change the policy with requests on their way, perhaps for a trial of two."""
        policy = PUBLISHED.plain(cost)
        if weighed and "overlap_score_weight" in weights_of(policy.weights):
            policy = PUBLISHED.pricing(cost, {"overlap_score_weight": 1.75})
        for side in self.sides:
            other = PUBLISHED.plain("lmetric")
            arms = Arms(policy, other, "candidate", ArmCounter(), 5) if trial else None
            side.scheduler.follow(policy, arms)

    @rule(size=st.sampled_from([SIZE, SIZE, 7]))
    def resize(self, size: int) -> None:
        self.size = size
        for side in self.sides:
            side.dispatch.resize(size)

    @rule(
        worker=st.sampled_from(WORKERS),
        text=st.sampled_from(TEXTS),
        act=st.sampled_from(["book", "book", "first", "grow", "finish", "gone"]),
    )
    def hear_of_a_peer(self, worker: WorkerId, text: str, act: str) -> None:
        """Take what another replica booked, and what became of it."""
        keys = tuple(hashes_of(text, self.size).upto(1 << 40)[1::2])
        for side in self.sides:
            scheduler, name = side.scheduler, f"p-{worker}"
            match act:
                case "book":
                    demand = Demand(len(ids_of(text)), 9, 20, keys=keys)
                    scheduler.sequences.add(name, same_name(worker), demand, self.now, owner="peer")
                case "first":
                    scheduler.first_token(name, self.now)
                case "grow":
                    scheduler.grow(name, 17, self.now)
                case "finish":
                    scheduler.finish(name, self.now)
                case _:
                    scheduler.sequences.remove_owner("peer")

    @rule()
    def publish_to(self) -> None:
        """Take what other replicas are told: the same bytes."""
        for side in self.sides:
            side.outbox.publish_growth()
        spec, quick = (side.outbox.take(8, 4096) for side in self.sides)
        assert spec == quick

    @rule()
    def reload(self) -> None:
        """Take another index, as from a snapshot."""
        for side in self.sides:
            if side.index is not None:
                data = b"".join(encode_snapshot(side.index.freeze(), Position()))
                snapshot = decode_snapshot(data)
                side.index.load(snapshot.image, snapshot.truncated)

    @rule(seconds=st.sampled_from([0.001, 0.02, 0.5, 3.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for side in self.sides:
            side.scheduler.sequences.expire(self.now)
            side.scheduler.grow_unseen(self.now)
            side.log.settle()
            if side.index is not None:
                side.index.sweep(64)

    @invariant()
    def agree(self) -> None:
        if hasattr(self, "spec"):
            assert self.quick.view(self.now) == self.spec.view(self.now)


TestTwoWays = TwoWays.TestCase


@pytest.mark.parametrize("seed", range(12))
def test_grouped_workers_are_decided_over_alike(seed: int) -> None:
    """The machine seldom meets prompts of a worker with a rule, ends, and something believed."""
    rng, ways = random.Random(seed), TwoWays()
    blocks = rng.choice([24, 1 << 20, 1 << 20])
    ways.begin("kv", rng.choice(QUICK), blocks, seed, 3, 5.0)
    sizes = OTHER_SIZES if seed % 2 else ()
    ways.look_for(sizes)
    cut = compiled = 0
    for number in range(120):
        worker, text, own = rng.choice(WORKERS), rng.choice(TEXTS), rng.choice((0, *sizes))
        match rng.randrange(9):
            case 0:
                rule = rng.choice([Reuse(), Reuse(0, 1), Reuse(1), Reuse(3, 1)])
                ways.group(worker, text, rule, rng.randint(1, 7), gone=False, own=own)
            case 1:
                gone = rng.random() < 0.5
                ways.group(worker, text, None, rng.randint(1, 7), gone=gone, own=own)
            case 2 | 3:
                ways.store(worker, text, rng.random(), own=own)
            case 4:
                ways.receive(worker, text, rng.random())
            case 5:
                trust = rng.choice([Trust.EXACT, Trust.EXACT, Trust.DEGRADED])
                ways.join(worker, (), 0, trust, late=rng.random() < 0.3, own=own)
            case 6:
                ways.wait(rng.choice([0.02, 0.5, 3.0]))
            case _:
                before = len(ways.asked)
                ways._ask(text, False, None, MODEL, number % 2 == 0)
                compiled += any(one.placed is not None for one in ways.asked[before:])
                assert ways.quick.index is not None
                cut += bool(ways.quick.index.find_hits(hashes_of(text))[1])
        ways.agree()
    assert compiled
    assert cut or seed


@pytest.mark.parametrize("seed", range(5))
def test_caches_that_will_evict_are_decided_over_alike(seed: int) -> None:
    """The machine seldom queues enough at a worker for its cached blocks to be in doubt."""
    rng, ways = random.Random(seed), TwoWays()
    ways.begin("kv", "predicted-time", 1 << 20, seed, rng.choice([0, 3, 1000]), 5.0)
    lost = 0
    for number in range(150):
        worker, text = rng.choice(WORKERS), rng.choice(TEXTS)
        match rng.randrange(10):
            case 0:
                ways.group(worker, text, rng.choice([None, Reuse()]), rng.randint(1, 3), gone=False)
            case 1 | 2:
                ways.store(worker, text, rng.random())
            case 3:
                ways.receive(worker, text, rng.random())
            case 4:
                blocks, late = rng.choice([8, 20, 60]), rng.random() < 0.3
                ways.join(worker, (), blocks, Trust.EXACT, late=late)
            case 5:
                ways.wait(rng.choice([0.02, 0.5, 6.0]))
            case _:
                before = len(ways.asked)
                ways._ask(text, True, None, MODEL, number % 2 == 0)
                for one in ways.asked[before:]:
                    assert one.one.decision is not None
                    doubted = one.one.decision.chosen.lost_tokens > 0.0
                    lost += doubted and one.placed is not None
        ways.agree()
    assert lost or seed


def test_who_may_not_take_a_request_is_not_counted_as_holding_most_of_it() -> None:
    ways = TwoWays()
    ways.begin("kv", "predicted-time", 1 << 20, 0, 0, 5.0)
    for worker, model, own in zip(WORKERS[1:4], ("other", MODEL, MODEL), (16, 0, 0), strict=True):
        ways.join(worker, (model,), 0, Trust.EXACT, own=own)

    for model in ("other", "other", MODEL):
        ways._ask(TEXTS[1], True, 16, model, False)

    most = [one.placed.record.best_overlap_blocks for one in ways.asked if one.placed is not None]
    assert most == [0, len(ids_of(TEXTS[1])) // 16 * 16 // SIZE, 0]
    ways.agree()


def test_requests_with_inputs_are_decided_over_alike() -> None:
    """The machine seldom meets slower tiers, adapters, targets and trials that go together."""
    met: Counter[str] = Counter()
    for seed in range(8):
        _play_inputs(seed, met)

    assert met["compiled"] > 300
    assert min(met[one] for one in ("brought", "loaded", "tried", "foretold")) > 4


def _play_inputs(seed: int, met: Counter[str]) -> None:  # noqa: PLR0912  one a case
    rng, ways = random.Random(seed), TwoWays()
    ways.begin("kv", "predicted-time", 1 << 20, seed, rng.choice([0, 1000]), 5.0)
    for number in range(220):
        worker, text = rng.choice(WORKERS), rng.choice(TEXTS)
        asked = ways.asked.pop(rng.randrange(len(ways.asked))) if ways.asked else None
        match rng.randrange(11):
            case 0:
                ways.hold_adapters(worker, rng.randint(1, 2), rng.choice([(), ("lora",)]))
            case 1 | 2:
                ways.store(worker, text, rng.random(), tier=rng.choice([0, 1, 1, 2]))
            case 3:
                ways.follow("predicted-time", False, rng.random() < 0.5)
            case 4 if asked is not None:
                ways._serve(asked, rng.choice([None, Usage(42, 9, 20)]))
                asked = None
            case 5 if asked is not None and rng.random() < 0.4:
                ways._fail(asked, rng.choice([UNKNOWN, failed_attempt("reset", 0.5)]))
                asked = None
            case 6 if asked is not None:
                ways._see(asked, rng.choice([1, 5]))
            case 7:
                ways.wait(rng.choice([0.001, 0.02, 0.5, 3.0]))
            case _:
                wish = rng.choice([{}, {}, *WISHES, *WISHES[-4:]])
                wishes = RequestWishes(**wish, chooses=True) if wish else NO_WISHES
                adapter = rng.choice(["", "lora"])
                before = len(ways.asked)
                ways._ask(
                    *(text, number % 3 > 0, 16, MODEL, number % 2 == 0),
                    wishes=wishes,
                    adapter=adapter,
                )
                for one in ways.asked[before:]:
                    if one.placed is not None:
                        decision = one.placed.record.decision
                        met["compiled"] += 1
                        met["brought"] += decision.brought is not None
                        met["loaded"] += decision.chosen.adapter_ms > 0.0
                        met["tried"] += decision.arm is not None
                        met["foretold"] += decision.forecast is not None
        if asked is not None:
            ways.asked.append(asked)
        ways.agree()
