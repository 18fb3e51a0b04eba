"""Nothing that Python code may do to the compiled decision harms the process: it is an error, and
nothing stays booked.
"""

import gc
import random
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf, nan
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import pytest
from msgspec.structs import astuple

from kvmesh import _native
from kvmesh.app.prompts.request_wishes import NO_WISHES
from kvmesh.core.blocks.events import ROOT, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.cost.formulas import COSTS
from kvmesh.core.cost.program import compile_formula
from kvmesh.core.cost.targets import Targets
from kvmesh.core.dispatch.dispatch import Dispatch
from kvmesh.core.dispatch.placing import Placer, ScannedPrompt
from kvmesh.core.engines.sse import Usage
from kvmesh.core.index.approx import new_approx
from kvmesh.core.index.index import KvIndex
from kvmesh.core.insight.decision_log import DecisionLog
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.worker_info import LoadReport, WorkerInfo
from kvmesh.core.routing.choice.slo_judge import COMING_MS, OWN_MS
from kvmesh.core.routing.decision import RouterMode, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from tests.property.support.starving import starved

native: Any = _native
WORKERS = [WorkerId(f"w{number}") for number in range(4)]
SIZE = 4
BODY = b'{"model":"m","messages":[{"role":"user","content":"%s"}],"max_tokens":9}' % (b"long " * 30)
COST = COSTS["predicted-time"]
WEIGHTS: tuple[float, ...] = astuple(RouterOptions().pricing().weights)


def anything(*_: object) -> None:
    return None


class Inputs:
    """A request's inputs, of which none is asked unless it is given."""

    course_of = prepare = allow = None

    def __init__(self, **given: Any) -> None:
        self.made = anything
        vars(self).update(given)


class Core:
    """A router's core with four workers, and a decider over its state.

    `health`, `random` and `index` stand in for what the decider asks.
    """

    def __init__(self, mode: RouterMode = "kv", **asked: Any) -> None:
        self.doing: Callable[[str], object] = anything
        self.index = KvIndex()
        options = RouterOptions(mode=mode, block_size=SIZE, replica="r")
        self.scheduler = scheduler = Scheduler(
            options,
            random.Random(1),
            membership=Membership(),
            sequences=new_sequences(SIZE),
            index=self.index,
            routed=new_approx(thinned=True),
        )
        scheduler.listen(new_approx(graded=True))
        self.log = DecisionLog(capacity=16, whole_per_s=0)
        self.dispatch = Dispatch(
            scheduler, self.log, lambda: 0.0, lambda _worker, _distrust: None, follows_events=True
        )
        health = scheduler.workers.membership.health
        given = {
            "sequences": scheduler.sequences,
            "speeds": scheduler.speeds,
            "lengths": scheduler.lengths,
            "distrusted": scheduler.workers.distrusted,
            "out": health.out,
            "health": health,
            "random": scheduler.rng.random,
            "replica": "r",
            "routed": scheduler.overlaps.routed,
            "index": self.index,
            "late": scheduler.late,
            "late_workers": scheduler.workers.late,
            "late_waiting": scheduler.late.waiting,
            "smallest_tree_ties": False,
            "predict_ttl_s": 1.0,
            "approx_ttl_s": 9.0,
        }
        self.log_parts = (
            *(self.log.records, self.log.totals, self.dispatch.tokens),
            *(self.dispatch.phases.of_decisions(), anything),
        )
        self.decider = native.Decider(**(given | asked))
        self.decider.log(*self.log_parts)
        self.decider.listen(scheduler.overlaps.hints)
        formula = compile_formula(COST)
        self.course = (mode, False, formula, WEIGHTS, COST.margin, mode, anything, None)
        self.policy = native.Course(*self.course)
        self.decider.follow(self.policy)
        for worker in WORKERS:
            scheduler.workers.membership.add(worker, 0.0)
            scheduler.workers.describe(worker, WorkerInfo(total_blocks=100))
            self.index.store(worker, ROOT, pack_hashes([1, 2, 3]))
        self.states = scheduler.workers.plain("m", 0.0)
        self.scanned = native.scan(BODY, True)

    def decide(self, request_id: bytes = b"r", now: float = 1.0, **other: Any) -> Any:
        states, whole = other.get("states", self.states), other.get("whole", False)
        return self.decider.decide(
            *(self.scanned, other.get("packed"), request_id, "", states, now, whole),
            *(other.get("name"), other.get("course"), other.get("among")),
            *(other.get("output", -1), other.get("most", inf), other.get("root", ROOT)),
            *(other.get("inputs"), other.get("affinity", 0), other.get("keep_s", 0)),
        )

    def request(self, **other: Any) -> Any:
        """Return what stands for a request to book."""
        asked = {
            "request_id": "b", "model": "m", "prompt_tokens": 9, "expected_output_tokens": 1,
            "choices": 1, "streams": True, "approximate": False, "prefilled": False,
            "affinity": 0, "keep_s": 0,
        }  # fmt: skip
        return SimpleNamespace(**(asked | other))

    def book(self, record: Any = None, now: Any = 1.0, **other: Any) -> Any:
        """Book what was chosen."""
        return self.decider.book(
            self.choose() if record is None else record,
            other.get("request", self.request()),
            other.get("packed", pack_hashes([1, 2, 3])),
            other.get("course", self.policy),
            None,
            now,
        )

    def finish(
        self, *, served: Any = True, state: Any = "finished", status: Any = 200,
        usage: Any = None, now: Any = 1.0,
    ) -> Any:  # fmt: skip
        """Finish what was decided."""
        return self.decider.finish(self.decide(), served, state, status, usage, now)

    def by(self, **inputs: Any) -> Any:
        return self.decide(inputs=Inputs(**inputs))

    def choose(self, **other: Any) -> Any:
        hashes = BlockHashes.of([1, 2, 3], SIZE)
        given = {
            "request_id": b"r", "hashes": hashes, "packed": hashes.upto(9), "ids": None,
            "prompt_tokens": 17, "output_tokens": 3, "cohort": self.states, "states": self.states,
            "now": 1.0, "whole": True, "course": self.policy, "inputs": None,
            "prefilled": False, "likeliest": False, "affinity": 0,
        }  # fmt: skip
        return self.decider.choose(*(given | other).values())

    def run(self, *program: object) -> Any:
        """Choose by a program."""
        formula = native.Formula(program, ("failure_ms",))
        return self.choose(course=native.Course("kv", False, formula, *self.course[3:]))

    def price(self, price: Callable[[list[tuple[float, object]]], object]) -> Any:
        """Choose by costs that somebody else computes; look at all that is kept."""
        course = native.Course(*self.course[:2], price, *self.course[3:])
        record = self.choose(course=course)
        return record.terms(), record.weighed()

    def draw(self, draw: Callable[[list[float]], object]) -> Any:
        return self.decide(course=native.Course(*self.course[:-1], draw))

    def use(self) -> None:
        """Go the whole way, with all that there is to see."""
        self.states = self.scheduler.workers.plain("m", 2.0)
        if self.states:
            placed = self.decide(b"used", 2.0, whole=True)
            self.decider.seen(placed, 1, 2.1)
            self.decider.seen(placed, 60, 2.2)
            self.decider.finish(placed, True, "finished", 200, Usage(9, 8, 7), 2.5)
            repr([getattr(placed, name) for name in dir(placed) if name[0] != "_"])
            placed.record.terms()
            placed.record.weighed()
        assert not self.decide(states=())


@pytest.fixture(name="core")
def _core() -> Core:
    return Core()


DECIDE = (None, b"r", "", (), 1.0, False, None, None, None, -1, inf, ROOT, None, 0, 0)
COURSE = (False, None, WEIGHTS, 0.0, "kv", anything, None)

MISUSES: dict[str, Callable[[Core], object]] = {
    "a decider of nothing": lambda _: native.Decider(),
    "a decider of words": lambda _: Core(sequences="sequences"),
    "an index of beliefs": lambda _: Core(routed={}),
    "an index of what was heard": lambda core: core.decider.listen(KvIndex()),
    "a histogram of words": lambda core: core.decider.log(
        *core.log_parts[:3], ("s",) * 4, anything
    ),
    "a log of nothing": lambda core: core.decider.log(),
    "a replica of no name": lambda _: Core(replica=1),
    "a placed one": lambda _: native.Placed(),
    "no scan": lambda _: native.scan(),
    "a scan of words": lambda _: native.scan("{}", True),
    "a scan that cannot say": lambda _: native.scan(b"{}", Untrue()),
    "follow nothing": lambda core: core.decider.follow(),
    "follow no course": lambda core: core.decider.follow(None),
    "a course of nothing": lambda _: native.Course(),
    "a course by name": lambda core: native.Course(*core.course, mode="kv"),
    "a course of no formula": lambda _: native.Course("kv", *COURSE),
    "a course of another mode": lambda core: native.Course("direct", *core.course[1:]),
    "a course of no weights": lambda core: native.Course(*core.course[:3], (), *core.course[4:]),
    "a course of many weights": lambda core: native.Course(
        *core.course[:3], (1.0,) * 99, *core.course[4:]
    ),
    "a course of words": lambda core: native.Course(
        *core.course[:3], ("1",) * len(WEIGHTS), *core.course[4:]
    ),
    "decide by no course": lambda core: core.decide(course="kv"),
    "decide among a list": lambda core: core.decide(among=[*core.states]),
    "decide among numbers": lambda core: core.decide(among=(1, 2)),
    "decide for so many": lambda core: core.decide(output=1 << 99),
    "decide for words": lambda core: core.decide(output="9"),
    "decide from a seed of words": lambda core: core.decide(root="1"),
    "decide from no u64": lambda core: core.decide(root=-1),
    "decide soon": lambda core: core.decide(most="soon"),
    "decide for the key of words": lambda core: core.decide(affinity="key"),
    "decide for no key": lambda core: core.decide(affinity=-1),
    "decide to keep for words": lambda core: core.decide(keep_s="long"),
    "decide to keep for ever": lambda core: core.decide(keep_s=1 << 99),
    "choose for no key": lambda core: core.choose(affinity=-1),
    "book for no key": lambda core: core.book(request=core.request(affinity=-1)),
    "book for no time": lambda core: core.book(request=core.request(keep_s="long")),
    "draw nobody": lambda core: core.draw(lambda _: 4),
    "draw none": lambda core: core.draw(lambda _: -1),
    "draw by no number": lambda core: core.draw(lambda _: "w0"),
    "draw and fail": lambda core: core.draw(lambda _: 1 // 0),
    "inputs of nothing": lambda core: core.decide(inputs=1),
    "inputs that make nothing": lambda core: core.decide(inputs=Asked()),
    "a course of hashes": lambda core: core.by(course_of=lambda hashes: hashes),
    "no course": lambda core: core.by(course_of=lambda _: 1 // 0),
    "prepare nothing": lambda core: core.by(prepare=anything),
    "prepare words": lambda core: core.by(prepare=lambda _: ("w0", 1)),
    "prepare by words": lambda core: core.by(prepare=lambda _: {"w0": "much"}),
    "prepare too little": lambda core: core.by(prepare=lambda _: {"w0": (1, 2)}),
    "prepare beyond all": lambda core: core.by(prepare=lambda _: {"w0": (1 << 99,) * 6}),
    "prepare in vain": lambda core: core.by(prepare=lambda _: 1 // 0),
    "allow by a function": lambda core: core.by(allow=lambda _: [0]),
    "allow nobody": lambda core: core.by(allow=forecasts(least=2.0, hopeless=ZeroDivisionError)),
    "allow by no number": lambda core: core.by(allow=forecasts(ttft_ms=nan, slack=nan)),
    "blocks of nothing": lambda core: core.decider.resize(0),
    "blocks too large": lambda core: core.decider.resize(1 << 21),
    "blocks beyond all": lambda core: core.decider.resize(1 << 99),
    "blocks in words": lambda core: core.decider.resize("16"),
    "decide alone": lambda core: core.decider.decide(),
    "decide a body": lambda core: core.decider.decide(BODY, *DECIDE),
    "decide a name": lambda core: core.decide("r"),  # type: ignore[arg-type]
    "decide a list": lambda core: core.decide(states=[*core.states]),
    "decide numbers": lambda core: core.decide(states=(1, 2)),
    "decide at no time": lambda core: core.decide(now="now"),  # type: ignore[arg-type]
    "decide never": lambda core: core.decide(now=float("nan")),
    "decide later than all": lambda core: core.decide(now=float("inf")),
    "decide for nobody": lambda core: core.decider.decide(
        *(core.scanned, None, b"r", 1, core.states, 1.0, False, None),
        *(None, None, -1, inf, ROOT, None, 0, 0),
    ),
    "decide by a number": lambda core: core.decide(name=1),
    "decide in words": lambda core: core.decide(packed="tokens"),
    "decide what is not in one piece": lambda core: core.decide(packed=memoryview(b"x" * 64)[::2]),
    "decide who knows": lambda core: core.decide(whole=Untrue()),
    "seen alone": lambda core: core.decider.seen(),
    "seen of a number": lambda core: core.decider.seen(1, 1, 1.0),
    "seen in words": lambda core: core.decider.seen(core.decide(), "1", 1.0),
    "seen at no time": lambda core: core.decider.seen(core.decide(), 1, "now"),
    "finish alone": lambda core: core.decider.finish(),
    "finish a number": lambda core: core.decider.finish(1, True, "finished", 200, None, 1.0),
    "finish in words": lambda core: core.decider.finish(
        core.decide(), True, "finished", "200", None, 1.0
    ),
    "finish with a status beyond all": lambda core: core.finish(status=1 << 99),
    "finish with words": lambda core: core.decider.finish(
        core.decide(), True, "finished", 200, "usage", 1.0
    ),
    "finish at no time": lambda core: core.decider.finish(
        core.decide(), True, "finished", 200, None, "now"
    ),
    "finish and not know": lambda core: core.finish(served=Untrue()),
    "finish in no state": lambda core: core.finish(state="gone"),
    "book alone": lambda core: core.decider.book(),
    "book a number": lambda core: core.book(1),
    "book for nobody": lambda core: core.book(request=None),
    "book under a number": lambda core: core.book(request=core.request(request_id=1)),
    "book for a model of no name": lambda core: core.book(request=core.request(model=1)),
    "book tokens in words": lambda core: core.book(request=core.request(prompt_tokens="9")),
    "book who knows": lambda core: core.book(request=core.request(streams=Untrue())),
    "book no hashes": lambda core: core.book(packed=None),
    "book by no course": lambda core: core.book(course=None),
    "book at no time": lambda core: core.book(now="now"),
    "enter alone": lambda core: core.decider.enter(),
    "enter a number": lambda core: core.decider.enter(1, b"r", "", None, 1.0),
    "enter at no time": lambda core: core.decider.enter(core.book(), b"r", "", None, "now"),
    "enter in place of a number": lambda core: core.decider.enter(core.book(), b"r", "", 1, 1.0),
    "begin alone": lambda core: core.decider.begin(),
    "begin a number": lambda core: core.decider.begin(1, 1.0),
    "begin at no time": lambda core: core.decider.begin("r", "now"),
    "grow alone": lambda core: core.decider.grow(),
    "grow by words": lambda core: (core.decide(), core.decider.grow("r", "1", 1.0)),
    "release alone": lambda core: core.decider.release(),
    "release who knows": lambda core: (core.decide(), core.decider.release("r", Untrue(), 1.0)),
    "free alone": lambda core: core.decider.free(),
    "free a number": lambda core: core.decider.free(1, True, 1.0),
    "free who knows": lambda core: core.decider.free(core.decide(), Untrue(), 1.0),
    "prefilled by a number": lambda core: core.decider.prefilled_s(1),
    "choose alone": lambda core: core.decider.choose(),
    "choose for a name": lambda core: core.choose(request_id="r"),
    "choose of no hashes": lambda core: core.choose(packed=None),
    "choose of ids in words": lambda core: core.choose(ids="ids"),
    "choose for so many": lambda core: core.choose(prompt_tokens=1 << 99),
    "choose for words": lambda core: core.choose(output_tokens="9"),
    "choose among a list": lambda core: core.choose(cohort=[*core.states]),
    "choose among nobody": lambda core: core.choose(states=()),
    "choose among numbers": lambda core: core.choose(states=(1, 2)),
    "choose in a crowd of numbers": lambda core: core.choose(cohort=(1, 2), states=(1, 2)),
    "choose at no time": lambda core: core.choose(now="now"),
    "choose by no course": lambda core: core.choose(course=None),
    "choose who knows": lambda core: core.choose(whole=Untrue()),
    "choose, prefilled who knows": lambda core: core.choose(prefilled=Untrue()),
    "choose the likeliest who knows": lambda core: core.choose(likeliest=Untrue()),
    "choose by inputs of nothing": lambda core: core.choose(inputs=1),
    "price nothing": lambda core: core.price(anything),
    "price too few": lambda core: core.price(lambda _: [1.0]),
    "price in words": lambda core: core.price(lambda weighed: ["dear"] * len(weighed)),
    "price and fail": lambda core: core.price(lambda _: 1 // 0),
    "price no numbers": lambda core: core.price(lambda weighed: [float("nan")] * len(weighed)),
    "divide by zero": lambda core: core.run(1.0, 0.0, "/"),
    "divide by nothing that fails": lambda core: core.run(1.0, "failure_share", "/"),
    "hashes in words": lambda core: core.decide().hashes.upto("all"),
    "another booking": lambda core: setattr(core.decide(), "booking", None),
}


def worth_a_lot(_: object) -> Any:
    return dict.fromkeys(WORKERS[1:], (3, 4, 5, 1, 2.0, 30.0))


def forecasts(
    ttft_ms: float | None = 20.0,
    slack: float = 1.0,
    least: float = 0.0,
    hopeless: type[Exception] | None = None,
) -> native.Forecasts:
    """Return those of a request that waited for 1 ms."""
    errors = native.TimeErrors()
    return native.Forecasts(
        *(ttft_ms, None, 1.0, slack, least, COMING_MS, OWN_MS, errors, errors, hopeless)
    )


class Untrue:
    """Neither true nor false."""

    def __bool__(self) -> bool:
        raise ValueError


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_is_an_error_and_all_goes_on(misuse: str, core: Core) -> None:
    with pytest.raises((TypeError, ValueError, ArithmeticError, AttributeError, BufferError)):
        MISUSES[misuse](core)

    core.use()


def test_a_decider_that_follows_nothing_or_has_no_log_decides_nothing(core: Core) -> None:
    empty = native.Decider(
        sequences=core.scheduler.sequences, speeds=core.scheduler.speeds,
        lengths=core.scheduler.lengths, distrusted=set(), out=set(), health=None, random=None,
        replica="", routed=None, index=None, late=None, late_workers={}, late_waiting={},
        smallest_tree_ties=False, predict_ttl_s=1.0, approx_ttl_s=9.0,
    )  # fmt: skip
    asked = (
        *(core.scanned, None, b"r", "", core.states, 1.0, False, None),
        *(None, None, -1, inf, ROOT, None, 0, 0),
    )
    placed = core.decide()

    with pytest.raises(RuntimeError, match="follows no policy"):
        empty.decide(*asked)
    empty.follow(core.policy)
    with pytest.raises(RuntimeError, match="has no log"):
        empty.decide(*asked)
    with pytest.raises(RuntimeError, match="has no log"):
        empty.seen(placed, 1, 2.0)
    with pytest.raises(RuntimeError, match="has no log"):
        empty.finish(placed, True, "finished", 200, None, 2.0)


def test_what_prices_may_look_at_all_and_ask_for_nothing(core: Core) -> None:
    seen: list[object] = []

    def price(weighed: list[tuple[float, object]]) -> list[float]:
        seen.extend(weighed)
        weighed.clear()
        with pytest.raises(RuntimeError, match="within another"):
            core.choose()
        with pytest.raises(RuntimeError, match="within another"):
            core.decide()
        with pytest.raises(RuntimeError, match="within a decision"):
            core.decider.listen(None)
        return [2.0, 1.0, 3.0, 4.0]

    terms, weighed = core.price(price)

    assert (terms[0], [score for score, _ in weighed]) == ("w1", [2.0, 1.0, 3.0, 4.0])
    assert len(seen) == len(WORKERS)
    assert core.scheduler.sequences.owned() == []
    core.use()


def test_a_request_that_ended_does_not_end_again(core: Core) -> None:
    placed = core.decide()
    core.decider.finish(placed, True, "finished", 200, None, 2.0)

    with pytest.raises(RuntimeError, match="request r has ended before"):
        core.decider.finish(placed, True, "finished", 200, None, 3.0)

    assert core.log.totals.prompt_tokens == placed.prompt_tokens


def test_tokens_behind_the_end_change_no_booking(core: Core) -> None:
    placed = core.decide()
    core.decider.finish(placed, True, "finished", 200, None, 2.0)

    assert core.decider.seen(placed, 50, 3.0) is True
    assert core.decider.seen(placed, 1 << 99, 3.0) is False
    assert core.scheduler.sequences.owned() == []


def test_more_tokens_than_can_be_counted_are_as_many_as_can(core: Core) -> None:
    placed = core.decide()

    core.decider.seen(placed, 1 << 99, 3.0)

    assert placed.booking.output_tokens == 1 << 40
    core.decider.finish(placed, True, "finished", 200, None, 4.0)


def test_a_worker_that_left_meanwhile_has_nothing_to_give_back(core: Core) -> None:
    placed = core.decide()
    core.scheduler.remove_worker(placed.record.worker)

    assert core.decider.seen(placed, 1, 2.0) is True
    assert core.decider.finish(placed, True, "finished", 200, Usage(1, 2, 3), 3.0) == (None, True)
    assert core.log.totals.prompt_tokens == placed.prompt_tokens


def test_a_request_under_way_outlives_other_blocks(core: Core) -> None:
    placed = core.decide()
    core.dispatch.resize(16)
    core.decider.resize(16)
    again = core.decide(b"again")

    for one in (placed, again):
        core.decider.seen(one, 70, 2.0)
        core.decider.finish(one, True, "finished", 200, Usage(200, 70, 16), 3.0)

    assert core.scheduler.sequences.owned() == []
    loads = [core.scheduler.sequences.loads(worker) for worker in WORKERS]
    assert [one.active_blocks for one in loads] == [0, 0, 0, 0]


def test_a_booking_has_the_name_that_it_is_given(core: Core) -> None:
    one, other = core.decide(name="r#1"), core.decide(name="r#2")

    assert [*core.scheduler.sequences.bookings] == ["r#1", "r#2"]
    assert (one.record.request_id, one.request_id, other.request_id) == (b"r", "r#1", "r#2")


def test_a_name_that_is_taken_books_nothing_more(core: Core) -> None:
    first = core.decide()
    second = core.decide()

    assert (first.booking is None, second.booking) == (False, None)
    assert core.decider.seen(second, 9, 2.0) is True
    assert core.decider.finish(second, True, "finished", 200, None, 3.0)[0] is None
    assert core.scheduler.sequences.owned() == [first.booking]


# Who is asked may do anything.


def each(act: Callable[[Any], object], items: Iterable[Any]) -> None:
    for one in items:
        act(one)


NUISANCES: dict[str, Callable[[Core], object]] = {
    "decide": lambda core: core.decide(b"within"),
    "follow": lambda core: core.decider.follow(core.policy),
    "resize": lambda core: core.decider.resize(2),
    "remove the workers": lambda core: [core.scheduler.remove_worker(one) for one in WORKERS],
    "remove them from the index": lambda core: each(core.index.remove_worker, WORKERS),
    "forget beliefs": lambda core: core.scheduler.overlaps.routed.remove_worker(WORKERS[0]),  # type: ignore[union-attr]
    "hear more": lambda core: [
        core.scheduler.overlaps.hints.record_graded(f"h{one}", [one], 1, 1.0, 9.0)  # type: ignore[union-attr,arg-type]
        for one in range(99)
    ],
    "believe more": lambda core: [
        core.scheduler.overlaps.routed.record(f"n{one}", [one], 1.0, 9.0)  # type: ignore[union-attr,arg-type]
        for one in range(99)
    ],
    "store": lambda core: core.index.store("new", ROOT, pack_hashes([*range(99)])),  # type: ignore[arg-type]
    "end all": lambda core: [
        core.scheduler.finish(one.request_id, 1.0) for one in core.scheduler.sequences.owned()
    ],
    "other loads": lambda core: each(
        lambda one: setattr(one, "loads", new_sequences(SIZE).loads(one.worker)), core.states
    ),
    "other reports": lambda core: each(
        lambda one: setattr(one, "report", LoadReport()), core.states
    ),
    "log": lambda core: (core.log.settle(), core.log.records.latest(40)),
    "collect": lambda _: gc.collect(),
    "raise": lambda _: 1 / 0,
}


class Asked:
    """Stands for all that a decider asks, and does something else before it answers."""

    def __init__(self) -> None:
        self.do: Callable[[], object] = anything
        self.index: Any = None
        self.asked: list[str] = []

    def __call__(self) -> float:
        self.asked.append("random")
        self.do()
        return 0.99

    def _answer(self, *_: object) -> bool:
        self.asked.append("health")
        self.do()
        return True

    chosen = began = served = learn = note_match = add = begin = end = _answer

    @property
    def view(self) -> Any:
        self.asked.append("view")
        self.do()
        return self.index.view

    def current_view(self) -> Any:
        return self.index.current_view()


class NosyReport:
    """A report that does something when it is read."""

    waiting_requests = 1

    def __init__(self, do: Callable[[], object]) -> None:
        self.do = do

    @property
    def used_blocks(self) -> int:
        self.do()
        return 3


class Name(str):
    """A worker's name that does something when it is compared."""

    __slots__ = ("do",)
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        if do := getattr(self, "do", None):
            do()
        return str.__eq__(self, other)


HARMLESS: Final = (
    RuntimeError,
    ZeroDivisionError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
)


def disturber(nuisance: str, core: Core) -> Callable[[], None]:
    """Return what makes a nuisance, but not from within itself."""
    busy: list[None] = []

    def disturb() -> None:
        if not busy:
            busy.append(None)
            try:
                NUISANCES[nuisance](core)
            finally:
                busy.clear()

    return disturb


@pytest.mark.parametrize("mode", ["kv", "round-robin", "random", "power-of-two"])
@pytest.mark.parametrize("nuisance", NUISANCES)
def test_whoever_is_asked_may_do_anything(nuisance: str, mode: RouterMode) -> None:
    asked = Asked()
    waiting: dict[WorkerId, object] = {WORKERS[0]: {}}
    core = Core(
        mode,
        health=asked, random=asked, index=asked, late=asked, late_waiting=waiting,
    )  # fmt: skip
    asked.index = core.index
    core.scheduler.workers.late.update(dict.fromkeys(WORKERS, 0))
    core.scheduler.workers.membership.health.out.add(WORKERS[0])
    core.decide(b"before")
    disturb = disturber(nuisance, core)
    asked.do = disturb
    for number, one in enumerate(core.states):
        one.report = NosyReport(disturb)  # type: ignore[assignment]
        one.capacity_blocks = number

    def nosy(result: object) -> Callable[[object], object]:
        return lambda _: (disturb(), result)[1]

    inputs = Inputs(prepare=nosy(worth_a_lot(None)), allow=forecasts())
    for number in range(5):
        with suppress(*HARMLESS):
            among = inputs if number > 2 else None
            placed = core.decide(b"%d" % number, whole=number == 1, inputs=among)
            core.decider.seen(placed, 1, 2.0)
            core.decider.seen(placed, 40, 2.5)
            core.decider.finish(placed, True, "finished", 200, Usage(9, 8, 7), 3.0)
    asked.do = anything

    assert asked.asked
    for one in core.states:
        one.report = LoadReport()
    for booking in core.scheduler.sequences.owned():
        core.scheduler.finish(booking.request_id, 4.0)
    core.decider.resize(SIZE)
    core.use()


@pytest.mark.parametrize("nuisance", NUISANCES)
def test_names_that_are_compared_may_do_anything(nuisance: str, core: Core) -> None:
    distrusted = core.scheduler.workers.distrusted
    names = [Name(worker) for worker in WORKERS]
    disturb = disturber(nuisance, core)
    core.decide(b"before")
    for name in names:
        core.scheduler.overlaps.routed.record(name, [1, 2], 1.0, 9.0)  # type: ignore[union-attr,arg-type]
        distrusted.add(name)  # type: ignore[arg-type]
    ratio = core.scheduler.speeds.prefill_ratio(WORKERS[0])
    states = tuple(
        native.WorkerState(name, new_sequences(SIZE).loads(WORKERS[0]), ratio, None, None)
        for name in names
    )
    for name in names:
        setattr(name, "do", disturb)  # noqa: B010  a slot of a class made in a test
    for chosen in (core.states, states, core.states):
        with suppress(*HARMLESS):
            placed = core.decide(b"%d" % len(core.log.records), states=chosen)
            core.decider.finish(placed, True, "finished", 200, None, 3.0)
    for name in names:
        setattr(name, "do", None)  # noqa: B010
    distrusted.clear()
    core.decider.resize(SIZE)

    core.use()


@pytest.mark.parametrize("mode", ["kv", "round-robin", "least-loaded"])
def test_an_error_of_whoever_is_asked_leaves_nothing_booked(mode: RouterMode) -> None:
    asked = Asked()
    core = Core(mode, health=asked)
    core.scheduler.workers.membership.health.out.add(WORKERS[0])
    asked.do = lambda: 1 / 0

    with pytest.raises(ZeroDivisionError):
        core.decide()

    assert core.scheduler.sequences.owned() == []
    loads = [core.scheduler.sequences.loads(worker) for worker in WORKERS]
    assert [one.active_requests for one in loads] == [0, 0, 0, 0]


def test_no_memory_is_an_error_and_leaves_nothing_booked() -> None:
    failed = 0
    for number in range(200):
        core = Core()
        asked = (core.scanned, None, b"r", "", core.states, 1.0, number % 2 == 0, None)
        inputs = Inputs(prepare=worth_a_lot, allow=forecasts()) if number % 3 == 0 else None
        arguments = (*asked, None, None, -1, inf, ROOT, inputs, 0, 0)
        placed = starved(number, core.decider.decide, *arguments)
        if placed is None:
            failed += 1
            assert core.scheduler.sequences.owned() == [], number
        else:
            core.decider.finish(placed, True, "finished", 200, None, 2.0)
        core.use()
        if placed is not None and number > 60:
            break

    assert failed > 5


def ended(placed: Any) -> tuple[object, ...]:
    return placed, True, "finished", 200, Usage(9, 8, 7), 2.0


@pytest.mark.parametrize("call", ["seen", "finish"])
def test_no_memory_for_what_comes_later_is_an_error_too(call: str) -> None:
    failed = 0
    for number in range(12):
        core = Core()
        placed = core.decide()
        arguments = (placed, 60, 2.0) if call == "seen" else ended(placed)
        failed += starved(number, getattr(core.decider, call), *arguments) is None
        core.scheduler.finish("r", 3.0)
        assert core.scheduler.sequences.owned() == []
        core.use()

    assert failed > 0


def test_a_decider_that_leads_back_to_itself_is_collected() -> None:
    asked = Asked()
    core = Core(health=asked)
    asked.do = core.decider.decide
    core.decide(b"r")
    gone = weakref.ref(asked)

    del asked, core
    gc.collect()

    assert gone() is None


@pytest.mark.parametrize("targets", [None, Targets(ttft_ms=9e9)])
def test_who_places_requests_lets_its_core_go(targets: Targets | None) -> None:
    core = Core()
    placer = Placer(core.dispatch)
    wishes = msgspec.structs.replace(NO_WISHES, targets=targets)
    placed = placer.decide(ScannedPrompt(core.scanned), b"r", wishes, 1.0)
    assert placed is not None
    assert not isinstance(placed, int | float)
    assert (placed.inputs is not None) == (targets is not None)
    gone = weakref.ref(core.dispatch)

    del core, placer, placed
    gc.collect()

    assert gone() is None


def test_a_request_that_ends_while_its_end_is_told_is_finished_once(core: Core) -> None:
    scheduler = core.scheduler
    outbox = native.BookingOutbox(scheduler.sequences, 1)
    core.decider.publish_to(outbox)
    placed = core.decide(now=1.0)
    core.decider.seen(placed, 1, 1.5)
    outbox.gathering = False
    outbox.on_first = lambda: scheduler.finish("r", 2.0)

    booking, _ = core.decider.finish(placed, True, "finished", 200, None, 2.0)

    assert booking is None
    assert not scheduler.sequences.bookings
    health = scheduler.workers.membership.health
    assert sorted(health.recent(one) for one in WORKERS) == [(0, 0), (0, 0), (0, 0), (0, 1)]


def test_no_memory_for_a_booking_is_an_error_and_nothing_is_booked() -> None:
    failed = 0
    for number in range(60):
        core = Core()
        record, request = core.choose(), core.request()
        packed = pack_hashes([1, 2, 3])
        arguments = (record, request, packed, core.policy, None, 1.0)
        placed = starved(number, core.decider.book, *arguments)
        if placed is None:
            failed += 1
            assert core.scheduler.sequences.owned() == [], number
        core.use()

    assert 0 < failed < 60


def test_what_was_booked_is_recorded_once_and_ended_by_any_name(core: Core) -> None:
    placed = core.book()
    assert placed.sent_s != placed.sent_s, "it is not recorded yet"
    core.decider.enter(placed, b"r", "acme", None, 1.5)
    with pytest.raises(RuntimeError, match="was recorded before"):
        core.decider.enter(placed, b"r", "acme", None, 1.5)

    assert (placed.record.request_id, placed.record.tenant, placed.sent_s) == (b"r", "acme", 1.5)
    core.decider.grow("b", 4, 1.6)
    assert core.decider.begin("b", 1.7).request_id == "b"
    assert core.decider.begin("b", 1.8) is None
    assert core.decider.begin("gone", 1.8) is None
    core.decider.grow("gone", 4, 1.8)
    booking = core.decider.free(placed, False, 2.0)
    assert core.decider.prefilled_s(booking) == 1.7
    assert core.decider.free(placed, False, 2.0) is None
    assert core.decider.release("b", True, 2.0) is None


def test_a_second_attempt_is_recorded_in_place_of_the_first(core: Core) -> None:
    first = core.decide(b"r", 1.0)
    core.decider.free(first, False, 1.1)
    second = core.book(request=core.request(request_id="r"))
    core.decider.enter(second, b"r", "", first.record, 1.2)

    assert second.record is first.record
    assert (second.record.attempts, second.record.decided_s, second.sent_s) == (2, 1.0, 1.2)
    assert core.decider.finish(second, True, "finished", 200, None, 2.0)[0] is second.booking


def test_nothing_is_booked_within_a_decision(core: Core) -> None:
    record = core.choose()
    with pytest.raises(RuntimeError, match="within a decision"):
        core.by(prepare=lambda _: core.book(record))
