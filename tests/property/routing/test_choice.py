"""What the compiled core chooses is what its naive model does: worker, terms, scores, draws."""

import random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmesh.core.blocks.events import ENDS, ROOT, Reuse, Stored, WorkerId
from kvmesh.core.blocks.graded import grade
from kvmesh.core.blocks.hashing import BlockHashes, extend_hash, lookahead_digest, pack_hashes
from kvmesh.core.cost.arm_tally import Counter
from kvmesh.core.cost.arms import Arms
from kvmesh.core.cost.catalogue import Formulas
from kvmesh.core.cost.formulas import COSTS, Cost
from kvmesh.core.cost.own_function import cost_formula, own_cost
from kvmesh.core.cost.targets import Targets
from kvmesh.core.cost.terms import NO_FLEET, Candidate, Fleet
from kvmesh.core.index.approx import new_approx
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.worker_info import AdapterReport, LoadReport, Trust, WorkerInfo
from kvmesh.core.routing.choice.chooser import Choice
from kvmesh.core.routing.decision import Decision, RouteRequest, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.errors import NoWorkerError
from tests.reference.routing.chooser import Chooser
from tests.reference.routing.homes import count_home, rates_of, seed_of

SIZE = 16
BLOCKS = 100
WORKERS = [WorkerId(f"w{number}") for number in range(6)]
FETCH = frozenset({"kvmesh/fetch/lmcache/one"})
MODES = ("kv", "round-robin", "random", "least-loaded", "power-of-two", "direct")


def shortest(c: Candidate, f: Fleet) -> float:
    """Look at the fleet, and at what is fetched from whom."""
    return c.uncached_tokens + f.total_work * 1e-3 + (7.0 if c.fetch_from else 0.0)


@cost_formula(maximise=True, unit="ms")
def warmest(c: Candidate, f: Fleet) -> float:
    return c.overlap_blocks - c.active_requests - f.min_requests


def faulty(c: Candidate, f: Fleet) -> float:
    return 1.0 / (c.prefill_tokens - f.min_prefill_tokens)


OWN: tuple[Cost, ...] = tuple(own_cost(one, one.__name__) for one in (shortest, warmest, faulty))
ALL_COSTS = [*COSTS, *(one.name for one in OWN)]


def ids_of(variant: int) -> list[int]:
    return [variant * 1000 + number for number in range(BLOCKS * SIZE)]


def hashes_of(variant: int, blocks: int, *, ids: bool) -> BlockHashes:
    tokens = ids_of(variant)[: blocks * SIZE + 5]
    packed = b"".join(one.to_bytes(4, "little") for one in tokens)
    return BlockHashes(packed, SIZE, ids=packed if ids else None)


def share_of(data: Any, most: int = BLOCKS) -> int:
    drawn: int = data.draw(st.sampled_from([0, 1, 8, most // 2, most]))
    return drawn


class World:
    """A scheduler over workers in any state."""

    def __init__(self, data: Any) -> None:
        draw = self.draw = data.draw
        self.data = data
        self.now = 50.0
        self.index = KvIndex() if draw(st.booleans()) else None
        self.membership = Membership()
        mode = draw(st.sampled_from(["kv", "kv", "kv", *MODES]))
        self.scheduler = Scheduler(
            RouterOptions(
                mode=mode,
                cost=draw(st.sampled_from(ALL_COSTS)),
                temperature=draw(st.sampled_from([0.0, 0.0, 0.7])),
                smallest_tree_ties=draw(st.sampled_from([False, False, True])),
                formulas=Formulas(OWN),
                replica="r",
            ),
            random.Random(draw(st.integers(0, 9))),
            membership=self.membership,
            sequences=new_sequences(SIZE),
            index=self.index,
            routed=new_approx(thinned=True),
        )
        self.scheduler.listen(new_approx(graded=True))
        for worker in WORKERS[: draw(st.integers(1, 6))]:
            self.join(worker)
        for number in range(draw(st.integers(0, 12))):
            self.book(number)
        self.crowd()
        if draw(st.integers(0, 3)) == 0:
            self.try_policy()
        self.now += draw(st.sampled_from([0.0, 0.3, 2.0, 300.0]))

    def join(self, worker: WorkerId) -> None:
        draw, scheduler = self.draw, self.scheduler
        self.membership.add(worker, 0.0)
        info = WorkerInfo(
            models=draw(st.sampled_from([(), (), ("m",)])),
            total_blocks=draw(st.sampled_from([0, 40, 100_000])),
            trust=draw(st.sampled_from([Trust.EXACT, Trust.EXACT, Trust.DEGRADED])),
            labels=draw(st.sampled_from([frozenset(), FETCH])),
        )
        scheduler.workers.describe(worker, info)
        used, slots = draw(st.integers(0, 90)), draw(st.integers(0, 2))
        adapters = AdapterReport(slots, draw(st.sampled_from([(), ("lora",)])))
        scheduler.workers.report(worker, LoadReport(2, 1, used, 100, adapters=adapters))
        state = scheduler.workers.state(worker)
        state.failure_share = draw(st.sampled_from([0.0, 0.0, 0.4]))
        state.lost_ms = 200.0
        scheduler.speeds.prefill_ratio(worker).factor = draw(st.sampled_from([1.0, 1.0, 1.01, 3.0]))
        if self.index is not None:
            self.store(worker, self.index)
        hints = share_of(self.data)
        hashes = hashes_of(1, BLOCKS, ids=False).upto(BLOCKS)
        scheduler.overlaps.receive(worker, grade(hashes, hints), hints, self.now)

    def store(self, worker: WorkerId, index: KvIndex) -> None:
        for tier in self.draw(st.sampled_from([(0,), (0,), (0, 1), (1, 2)])):
            variant = self.draw(st.integers(0, 2))
            run = hashes_of(variant, BLOCKS, ids=False).upto(BLOCKS)[: share_of(self.data)]
            index.store(worker, ROOT, pack_hashes(run), tier=tier)
        if self.draw(st.integers(0, 4)):
            return
        lookahead = self.draw(st.integers(0, 1))
        index.apply(worker, Reuse(lookahead, 1))
        hashes, keys = hashes_of(0, BLOCKS, ids=True), []
        for depth in range(8, BLOCKS, 8):
            key, behind = hashes.upto(depth)[depth - 1], hashes.behind(depth, lookahead)
            keys.append(extend_hash(key, lookahead_digest(behind or b"")) if lookahead else key)
        index.apply(worker, Stored(ROOT, pack_hashes(keys), ENDS))

    def book(self, number: int) -> None:
        request = self.request(f"b{number}", plain=True)
        try:
            self.scheduler.schedule(request, self.now)
        except NoWorkerError:
            return
        self.now += self.draw(st.sampled_from([0.0, 0.05, 1.0]))
        if self.draw(st.booleans()):
            self.scheduler.first_token(request.request_id, self.now)

    def crowd(self) -> None:
        """Let as many requests with a key come as its home is for, or one less."""
        for number in range(self.draw(st.sampled_from([0, 0, 14, 15]))):
            request = RouteRequest(f"k{number}", hashes_of(0, 9, ids=False), 149, affinity=1)
            try:
                self.scheduler.schedule(request, self.now)
            except NoWorkerError:
                return
            seed = seed_of(1, request.hashes.upto(9) if self.sees(request) else (), SIZE)
            count_home(rates_of(self.scheduler), seed, self.now)

    def sees(self, request: RouteRequest) -> bool:
        return "kv" in (self.scheduler.options.mode, request.mode)

    def try_policy(self) -> None:
        options = self.scheduler.options
        policy = options.formulas.plain(self.draw(st.sampled_from(ALL_COSTS)))
        arms = Arms(self.scheduler.policy, policy, "candidate", Counter(), 2)
        self.scheduler.follow(self.scheduler.policy, arms)

    def request(self, name: str, *, plain: bool = False) -> RouteRequest:
        draw = self.draw
        blocks = draw(st.sampled_from([0, 1, 9, 50, BLOCKS - 1]))
        hashes = hashes_of(draw(st.integers(0, 3)), blocks, ids=draw(st.booleans()))
        request = RouteRequest(
            name, hashes, blocks * SIZE + 5, draw(st.sampled_from([0, 30, 4000])), model="m"
        )
        if plain:
            return request
        return msgspec.structs.replace(
            request,
            mode=draw(st.sampled_from([None, None, None, *MODES])),
            cost=draw(st.sampled_from([None, None, *ALL_COSTS])),
            temperature=draw(st.sampled_from([None, None, 0.0, 0.5])),
            pinned_worker=draw(st.sampled_from([None, None, None, WORKERS[0]])),
            allowed_workers=draw(st.sampled_from([None, None, frozenset(WORKERS[1:4])])),
            excluded=draw(st.sampled_from([frozenset(), frozenset(WORKERS[:2])])),
            adapter=draw(st.sampled_from(["", "", "lora"])),
            prefilled=draw(st.sampled_from([False, False, True])),
            names_source=draw(st.booleans()),
            targets=draw(st.sampled_from([None, None, Targets(ttft_ms=60.0), Targets(None, 5.0)])),
            priority=draw(st.integers(-1, 2)),
            session=draw(st.sampled_from(["", "s"])),
            affinity=draw(st.sampled_from([0, 1, (1 << 64) - 1])),
        )


def reported(decision: Decision) -> dict[str, Any]:
    found = {name: getattr(decision, name) for name in Decision.__struct_fields__ if name != "cost"}
    return found | {"arm": decision.arm and decision.arm.name, "cost": decision.cost.name}


def outcome(world: World, chooser: Any, request: RouteRequest, asked: dict[str, bool]) -> Any:
    """Return what a chooser answers, in a world that is afterwards as before."""
    scheduler = world.scheduler
    drawn, share = scheduler.rng.getstate(), scheduler.planner._held_share  # type: ignore[attr-defined]
    faults = [dict(vars(one.formula)) for one in OWN]
    try:
        found = chooser.choose(request, world.now, **asked)
        decision = found.decision if isinstance(found, Choice) else found
        return reported(decision), scheduler.rng.random()
    except NoWorkerError as error:
        return str(error)
    finally:
        scheduler.rng.setstate(drawn)  # type: ignore[attr-defined]
        scheduler.planner._held_share = share
        for one, before in zip(OWN, faults, strict=True):
            vars(one.formula).update(before)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_the_compiled_choice_is_that_of_its_model(data: Any) -> None:
    world = World(data)
    compiled, naive = world.scheduler._chooser, Chooser(world.scheduler)
    for number in range(3):
        request = world.request(f"r{number}")
        asked = {"whole": data.draw(st.booleans()), "likeliest": data.draw(st.booleans())}
        if asked["likeliest"]:
            request = msgspec.structs.replace(request, temperature=0.0)

        found = outcome(world, compiled, request, asked)
        expected = outcome(world, naive, request, asked)

        if isinstance(found, tuple) and found[0]["fleet"] == NO_FLEET:
            # It keeps one of several that it need not keep.
            for name in ("candidates", "scores", "fleet"):
                del found[0][name], expected[0][name]
        assert found == expected
