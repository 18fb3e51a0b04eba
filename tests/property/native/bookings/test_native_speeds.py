"""The compiled speeds and forecasts of answers do what the pure ones do, to the last bit."""

import contextlib
import random
from array import array
from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvmesh import _native
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.members.loads import MOST_TOKENS, new_speeds
from kvmesh.core.routing.output_lengths import (
    OutputForecast,
    OutputStatistics,
    new_lengths,
)
from tests.property.support.memory import assert_gives_back
from tests.reference.routing import output_lengths
from tests.reference.routing.output_lengths import NO_FORECAST
from tests.reference.workers import speeds as model
from tests.reference.workers.relative_speed import Ratio
from tests.reference.workers.speed_report import speed_report

WORKERS = [WorkerId(f"w{number}") for number in range(5)]
workers = st.sampled_from(WORKERS)
seconds = st.floats(0.0, 20.0) | st.sampled_from([-1.0, 0.0, 1e-9, 1e9, inf, nan])
tokens = st.integers(-3, 9000) | st.sampled_from([0, 1, 255, 256, 257, MOST_TOKENS])
FIGURES = ("fleet_ms_per_token", "uncached_tokens", "output_tokens")


class BothSpeeds(RuleBasedStateMachine):
    """A fleet's history, taken twice."""

    @initialize()
    def begin(self) -> None:
        self.twins: tuple[Any, Any] = (model.Speeds(), new_speeds())
        self.now = 0.0
        self.totals = dict.fromkeys(WORKERS, (0, 0))

    def each(self, act: Callable[[Any], object]) -> None:
        found = [act(twin) for twin in self.twins]
        assert found[0] == found[1]

    @rule(worker=workers, tokens=tokens, service_s=seconds, later=st.sampled_from([0.0, 0.001, 1]))
    def first_token(self, worker: WorkerId, tokens: int, service_s: float, later: float) -> None:
        self.now += later
        self.each(lambda one: one.first_token(worker, tokens, service_s, now=self.now))

    @rule(seed=st.integers(0, 1 << 30), prompts=st.integers(1, 100), fixed=st.booleans())
    def serve(self, *, seed: int, prompts: int, fixed: bool) -> None:
        rng = random.Random(seed)
        paces = [rng.choice([0.02, 0.05, rng.uniform(0.001, 3.0)]) for _ in WORKERS]
        for _ in range(prompts):
            place = rng.randrange(rng.choice([1, len(WORKERS)]))
            size = rng.choice([20, 300, 1500, rng.randrange(1, 20_000)])
            spent = (20.0 * fixed + paces[place] * size * rng.uniform(0.8, 1.3)) / 1000.0
            self.first_token(WORKERS[place], size, spent, rng.choice([0.001, 0.01]))

    @rule(worker=workers, more=tokens, us=st.integers(-9, 10_000_000), again=st.integers(0, 9))
    def measured(self, worker: WorkerId, more: int, us: int, again: int) -> None:
        for _ in range(again):
            before = self.totals[worker]
            new = self.totals[worker] = (before[0] + more, before[1] + us)
            self.each(lambda one, new=new: one.measured(worker, *new))  # type: ignore[misc]

    @rule(worker=workers)
    def begin_anew(self, worker: WorkerId) -> None:
        self.totals[worker] = (0, 0)

    @rule(worker=workers, tokens=tokens, elapsed_s=seconds)
    def output(self, worker: WorkerId, tokens: int, elapsed_s: float) -> None:
        self.each(lambda one: one.output(worker, tokens, elapsed_s))

    @rule(worker=workers, residence_s=seconds, tokens=tokens)
    def finished(self, worker: WorkerId, residence_s: float, tokens: int) -> None:
        self.each(lambda one: one.finished(worker, residence_s, tokens))

    @rule(worker=workers, tokens=tokens, elapsed_s=seconds)
    def answered(self, worker: WorkerId, tokens: int, elapsed_s: float) -> None:
        self.each(lambda one: one.answered(worker, tokens, elapsed_s))

    @rule(seed=st.integers(0, 1 << 30), answers=st.integers(1, 200), busy=st.integers(1, 5))
    def answer(self, *, seed: int, answers: int, busy: int) -> None:
        rng = random.Random(seed)
        paces = [rng.choice([20.0, 20.0, 200.0, rng.uniform(0.3, 90.0)]) for _ in WORKERS]
        for _ in range(answers):
            place, size = rng.randrange(busy), rng.choice([1, 5, 100, rng.randrange(1, 2000)])
            spent = (30.0 + paces[place] * size * rng.uniform(0.8, 1.5)) / 1000.0
            self.answered(WORKERS[place], size, spent)

    @rule(expected=st.integers(0, 9000))
    def answer_tokens(self, expected: int) -> None:
        self.each(lambda one: one.answer_tokens(expected))

    @rule(worker=workers)
    def remove(self, worker: WorkerId) -> None:
        self.each(lambda one: one.remove_worker(worker))

    @rule(worker=workers)
    def read(self, worker: WorkerId) -> None:
        self.each(lambda one: speed_report(one, worker))
        self.each(lambda one: one.ms_per_token(worker))
        ratios = [one.prefill_ratio(worker) for one in self.twins]
        pure, native = ([getattr(ratio, name) for name in Ratio.__slots__] for ratio in ratios)
        assert pure == native

    @rule(worker=workers, factor=st.floats(0.1, 10.0))
    def set_factor(self, worker: WorkerId, factor: float) -> None:
        for one in self.twins:
            one.prefill_ratio(worker).factor = factor

    @invariant()
    def the_same(self) -> None:
        pure, native = self.twins
        assert [getattr(pure, name) for name in FIGURES] == [
            getattr(native, name) for name in FIGURES
        ]
        assert pure.steps.step_tokens == native.steps.step_tokens
        for worker in (*WORKERS, WorkerId("stranger")):
            assert pure.ms_per_output_token(worker) == native.ms_per_output_token(worker)
            assert pure.residence_ms(worker) == native.residence_ms(worker)
        for worker in WORKERS:
            slow = [one.prefill_ratio(worker).slow_ms for one in self.twins]
            assert slow[0] == slow[1]


TestBothSpeeds = BothSpeeds.TestCase


@pytest.mark.parametrize("seed", range(12))
def test_a_long_history_is_the_same_to_the_last_bit(seed: int) -> None:
    rng, twins = random.Random(seed), (model.Speeds(), new_speeds())
    names, luck = WORKERS[: rng.randint(1, 5)], 1.0
    # Beyond 16 workers the time after which the unseen are doubted depends on their number.
    names += [WorkerId(f"x{number}") for number in range(rng.choice([0, 15, 30]))]
    for prompt in range(1500):
        worker = names[int(len(names) * rng.random() ** 2)]
        luck = rng.choice([0.0, 0.99]) * luck + rng.expovariate((9.0, 90.0, 900.0)[seed % 3])
        size = rng.choice([30, 700, 700, 5000])
        pace = (0.02, 0.06, 0.03)[prompt // 500] * (1.0 + 0.3 * names.index(worker)) * (1.0 + luck)
        for twin in twins:
            twin.first_token(worker, size, (8.0 + pace * size) / 1000.0, float(prompt))

        assert twins[0].fleet_ms_per_token == twins[1].fleet_ms_per_token
        ratios = [[twin.prefill_ratio(one) for one in names] for twin in twins]
        pure, native = ([(one.factor, one.ms, one.tokens) for one in of] for of in ratios)
        assert pure == native


prompts = st.builds(
    lambda blocks, changed, other: [
        10 + block + (1 << 63) * (changed <= block) * other for block in range(blocks)
    ],
    st.integers(0, 20),
    st.integers(0, 20),
    st.integers(0, 1),
)


class BothLengths(RuleBasedStateMachine):
    """Answers of prompts that begin alike, learned twice."""

    @initialize(
        size=st.sampled_from([16, 64, 100, 1024, 4000]), most=st.sampled_from([0, 2, 5, 99])
    )
    def begin(self, size: int, most: int) -> None:
        self.twins: tuple[Any, Any] = (
            output_lengths.OutputLengths(size, most),
            new_lengths(size, max_families=most),
        )
        self.size = size

    def ask(self, hashes: list[int]) -> tuple[Any, OutputForecast]:
        known = BlockHashes.of(hashes, self.size)
        found: list[tuple[Any, OutputForecast]] = [one.forecast(known) for one in self.twins]
        assert found[0] == found[1]
        return found[0]

    @rule(hashes=prompts, tokens=st.integers(0, 5000), foreseen=st.booleans())
    def learn(self, *, hashes: list[int], tokens: int, foreseen: bool) -> None:
        families, forecast = self.ask(hashes)
        for one in self.twins:
            one.learn(families, tokens, forecast if foreseen else NO_FORECAST)

    @rule(first=st.integers(0, (1 << 64) - 400), count=st.integers(1, 150))
    def learn_many(self, first: int, count: int) -> None:
        for number in range(count):
            self.learn(hashes=[first + number] * 64, tokens=number, foreseen=True)

    @rule(hashes=prompts)
    def foresee(self, hashes: list[int]) -> None:
        self.ask(hashes)

    @rule(size=st.sampled_from([16, 32, 300]))
    def resize(self, size: int) -> None:
        self.size = size
        for one in self.twins:
            one.resize(size)

    @invariant()
    def the_same(self) -> None:
        assert self.twins[0].statistics() == self.twins[1].statistics()


TestBothLengths = BothLengths.TestCase


class Hashes:
    """What a prompt's hashes are not."""

    def __init__(self, given: Callable[[], object]) -> None:
        self.upto = lambda _: given()


def lengths(block_size: Any = 16, most: Any = 9) -> Any:
    native: Any = _native
    return native.OutputLengths(OutputForecast, OutputStatistics, block_size, most)


def test_hashes_of_any_sequence_are_read_and_nothing_is_taken_for_them() -> None:
    pairs = [Hashes(lambda: [5] * 9), Hashes(lambda: (5,) * 9), Hashes(lambda: array("Q", [5] * 9))]

    for hashes in pairs:
        assert lengths().forecast(hashes) == (((64, 5),), NO_FORECAST)
    with pytest.raises(TypeError):
        lengths().forecast(Hashes(lambda: array("I", [5] * 9)))


MISUSES: dict[str, Callable[[Any], object]] = {
    "speeds of nothing": lambda native: native.Speeds(),
    "speeds of no time": lambda native: native.Speeds(0.0),
    "speeds of no number": lambda native: native.Speeds(nan),
    "speeds of endless time": lambda native: native.Speeds(inf),
    "a worker that is a number": lambda _: new_speeds().first_token(1, 1, 1.0, 1.0),  # type: ignore[arg-type]
    "a worker that is a list": lambda _: new_speeds().ms_per_token([]),  # type: ignore[arg-type]
    "a ratio of a list": lambda _: new_speeds().prefill_ratio([]),  # type: ignore[arg-type]
    "an output of a list": lambda _: new_speeds().ms_per_output_token([]),  # type: ignore[arg-type]
    "a residence of None": lambda _: new_speeds().residence_ms(None),  # type: ignore[arg-type]
    "a removal of None": lambda _: new_speeds().remove_worker(None),  # type: ignore[arg-type]
    "tokens in words": lambda _: new_speeds().first_token(WORKERS[0], "1", 1.0, 1.0),  # type: ignore[arg-type]
    "tokens beyond": lambda _: new_speeds().output(WORKERS[0], 1 << 70, 1.0),
    "seconds in words": lambda _: new_speeds().finished(WORKERS[0], "1", 1),  # type: ignore[arg-type]
    "totals in words": lambda _: new_speeds().measured(WORKERS[0], "1", 1),  # type: ignore[arg-type]
    "a first token alone": lambda _: new_speeds().first_token(),  # type: ignore[call-arg]
    "a fleet in words": lambda _: setattr(new_speeds(), "fleet_ms_per_token", "1"),
    "a fleet without speed": lambda _: delattr(new_speeds(), "fleet_ms_per_token"),
    "a worker's speed": lambda native: type(native.Speeds)(),
    "blocks of nothing": lambda _: lengths(0),
    "blocks of less": lambda _: lengths(-16),
    "blocks in words": lambda _: lengths("16"),
    "fewer families than none": lambda _: lengths(16, -1),
    "families beyond": lambda _: lengths(16, 1 << 40),
    "a size of nothing": lambda _: lengths().resize(0),
    "a size in words": lambda _: lengths().resize("16"),
    "hashes of None": lambda _: lengths().forecast(None),
    "hashes that are a number": lambda _: lengths().forecast(Hashes(lambda: 7)),
    "hashes in words": lambda _: lengths().forecast(Hashes(lambda: ["1"] * 9)),
    "hashes below 0": lambda _: lengths().forecast(Hashes(lambda: [-1] * 9)),
    "hashes beyond": lambda _: lengths().forecast(Hashes(lambda: [1 << 64] * 9)),
    "hashes that fail": lambda _: lengths().forecast(Hashes(lambda: WORKERS[99])),
    "families in a list": lambda _: lengths().learn([], 1, NO_FORECAST),
    "too many families": lambda _: lengths().learn(((64, 1),) * 4, 1, NO_FORECAST),
    "a family of one": lambda _: lengths().learn(((64,),), 1, NO_FORECAST),
    "a family in a list": lambda _: lengths().learn(([64, 1],), 1, NO_FORECAST),
    "a family in words": lambda _: lengths().learn((("64", 1),), 1, NO_FORECAST),
    "a family below 0": lambda _: lengths().learn(((64, -1),), 1, NO_FORECAST),
    "an answer in words": lambda _: lengths().learn((), "1", NO_FORECAST),
    "nothing foreseen": lambda _: lengths().learn((), 1, None),
    "words foreseen": lambda _: lengths().learn((), 1, OutputForecast("1", 1)),  # type: ignore[arg-type]
    "a forecast that fails": lambda native: native.OutputLengths(
        WorkerId, OutputStatistics, 16, 9
    ).forecast(BlockHashes.of([], 16)),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_is_an_error(misuse: str) -> None:
    with pytest.raises((TypeError, ValueError, IndexError, OverflowError, AttributeError)):
        MISUSES[misuse](_native)


class Meddler(str):
    """A name that removes every worker while it is looked up."""

    __slots__ = ()
    speeds: Any = None

    def __hash__(self) -> int:
        return hash(str(self))

    def __eq__(self, other: object) -> bool:
        if self.speeds is not None:
            speeds, Meddler.speeds = self.speeds, None
            speeds.remove_worker(WORKERS[0])
            Meddler.speeds = speeds
        return str(self) == str(other)


def test_a_name_that_meddles_while_it_is_looked_up_does_no_harm() -> None:
    speeds = new_speeds()
    Meddler.speeds = speeds

    for number in range(200):
        name = WorkerId(Meddler("w0")) if number % 2 else WORKERS[0]
        speeds.first_token(name, 1000, 1.0, float(number))
        speeds.output(name, 1, 1.0)
        assert speeds.ms_per_token(name) > 0.0
        assert speeds.prefill_ratio(name).factor > 0.0
        with contextlib.suppress(KeyError):
            speeds.remove_worker(name)

    Meddler.speeds = None


def test_speeds_and_lengths_give_their_memory_back() -> None:
    def live() -> None:
        for _ in range(20):
            speeds, known = new_speeds(), new_lengths(16)
            for number in range(200):
                name = WorkerId(f"w{number % 30}")
                speeds.first_token(name, 1000, 1.0, float(number))
                speeds.remove_worker(WorkerId(f"w{number % 7}"))
                families, foreseen = known.forecast(BlockHashes.of([number] * 64, 16))
                known.learn(families, 5, foreseen)

    assert_gives_back(live)
