"""What answers of workers without KV events teach of their caches."""

import random
from itertools import count

import pytest

from kvmesh._native import Placed
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import grade
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.dispatch.dispatch import Dispatch, Ending
from kvmesh.core.dispatch.dispatched import Dispatched
from kvmesh.core.engines.sse import Usage
from kvmesh.core.index.approx import new_approx
from kvmesh.core.insight.decision_log import DecisionLog
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import SERVED
from kvmesh.core.members.worker_info import LoadReport
from kvmesh.core.routing.decision import RouteRequest, RouterOptions
from kvmesh.core.routing.program_fleet import GovernedFleet
from kvmesh.core.routing.scheduler import Scheduler

W = WorkerId("w")
SIZE = 16


class Engine:
    """A dispatch over one worker without events, of `slots` or of so many blocks by its own word,
    0 each: it says nothing.
    """

    def __init__(self, *, slots: int = 0, blocks: int = 0, thinned: bool = False) -> None:
        membership = Membership()
        membership.add(W, 0.0)
        self.routed, self.hints = new_approx(thinned=thinned), new_approx(graded=True)
        self.scheduler = Scheduler(
            RouterOptions(),
            random.Random(1),
            membership=membership,
            sequences=new_sequences(SIZE),
            routed=self.routed,
        )
        self.scheduler.listen(self.hints)
        self.dispatch = Dispatch(
            self.scheduler,
            DecisionLog(),
            map(float, count()).__next__,
            lambda *_: None,
            follows_events=False,
        )
        self.now = 0.0
        self._names = count()
        if slots or blocks:
            report = LoadReport(total_blocks=blocks, prompt_slots=slots, slot_tokens=4096)
            self.scheduler.workers.report(W, report)

    def begin(self, family: int, blocks: int) -> Dispatched:
        """Send a prompt of so many blocks and one token."""
        self.now += 1.0
        hashes = BlockHashes.of([family << 20 | depth for depth in range(blocks)], SIZE)
        name = f"q{next(self._names)}"
        request = RouteRequest(name, hashes, blocks * SIZE + 1, streams=True)
        one = self.dispatch.enter(request, name.encode())
        assert isinstance(self.dispatch.decide(one, self.now), Placed)
        return one

    def end(
        self, one: Dispatched, cached: int | None, output: int = 1, counted: int | None = None
    ) -> int:
        """Have it answered with so many blocks cached; return the blocks that were predicted."""
        assert one.placed is not None
        self.dispatch.seen(one, 1, self.now)
        prompt = one.placed.prompt_tokens if counted is None else counted
        tokens = None if cached is None else cached * SIZE
        self.dispatch.finished(
            one, Ending(SERVED, "finished", 200, Usage(prompt, output, tokens)), self.now
        )
        return one.placed.record.overlap_blocks

    def ask(self, family: int, blocks: int, cached: int | None = None, output: int = 1) -> int:
        return self.end(self.begin(family, blocks), cached, output)


def test_each_slot_keeps_one_prompt_the_last_one_used_goes_first() -> None:
    engine = Engine(slots=2)
    for family in (1, 2):
        engine.ask(family, 20, 0)

    assert engine.ask(1, 24, 20) == 20
    assert engine.ask(3, 20, 0) == 0
    assert engine.ask(2, 24, 0) == 0, "the third took its slot"
    assert engine.ask(3, 24, 20) == 20
    assert engine.routed.keeps(W) == (2, 0)
    assert engine.routed.blocks(W) == 48, "what no slot keeps is forgotten"


def test_a_prompt_takes_the_slot_that_begins_like_it_and_what_differed_is_gone() -> None:
    engine = Engine(slots=2)
    engine.ask(1, 20, 0)
    hashes = [1 << 20 | depth for depth in range(10)] + [9 << 20 | depth for depth in range(10)]
    request = RouteRequest("x", BlockHashes.of(hashes, SIZE), 321)
    one = engine.dispatch.enter(request, b"x")
    engine.dispatch.decide(one, 5.0)

    assert engine.end(one, 10) == 10
    assert engine.ask(1, 20, 10) == 10


def test_a_busy_slot_is_taken_by_nobody_until_all_are() -> None:
    engine = Engine(slots=2)
    first = engine.begin(1, 20)
    again = engine.begin(1, 24)
    third = engine.begin(1, 28)

    assert engine.end(first, 0) == 0
    assert engine.end(again, 0) == 0, "it took the other slot"
    assert engine.end(third, 20) == 20, "all were busy: it follows who was there first"


def test_a_slot_whose_end_nobody_told_of_is_free_after_a_while() -> None:
    engine = Engine(slots=2)
    engine.begin(1, 20)
    engine.now += 601.0
    engine.ask(2, 20, 0)

    assert engine.ask(1, 24, 20) == 20


def test_answers_are_cached_behind_their_prompts_unless_prompts_leave_them_out() -> None:
    engine = Engine(slots=2)
    engine.ask(1, 20, 0, output=40)

    assert engine.ask(1, 30, 22, output=40) == 22
    assert engine.ask(1, 40, 32, output=4000) == 32
    assert engine.ask(1, 44, 44) == 44, "no more than the prompt has"
    for blocks in range(50, 90, 6):
        engine.ask(1, blocks, blocks - 6, output=100)
    assert engine.ask(1, 92, 86, output=100) == 86, "prompts of late did not go on from answers"
    assert engine.routed.keeps(W) == (2, 0)
    for blocks in range(104, 104 + 12 * 6, 12):
        engine.ask(1, blocks, blocks - 6, output=100)
    assert engine.ask(1, 180, 170, output=100) == 170


def test_slots_are_learned_by_what_was_and_what_was_not_there() -> None:
    engine = Engine(slots=2)
    engine.ask(1, 20, 0)
    engine.ask(1, 24, 0)
    assert engine.routed.keeps(W) == (1, 0), "others use it, too"
    engine.ask(1, 28, 0)
    assert engine.routed.keeps(W) == (1, 0)

    engine.ask(2, 20, 0)
    engine.ask(1, 32, 28)
    assert engine.routed.keeps(W) == (2, 0), "it keeps prompts in memory beside its slots"
    engine.ask(3, 20, 12)
    assert engine.routed.keeps(W) == (2, 0), "it was not full"

    assert GovernedFleet(engine.scheduler).contexts(W) == 2
    assert GovernedFleet(engine.scheduler).capacity_tokens(W) == 2 * 4096


def test_of_too_many_slots_only_their_room_counts() -> None:
    engine = Engine(slots=65)

    assert engine.routed.keeps(W) == (0, 65 * 4096 // SIZE)
    engine.routed.bound(W, 64, 10)
    assert engine.routed.keeps(W) == (64, 0)
    for family in range(1, 70):
        engine.ask(family, 4, 0)
    engine.ask(1, 40, 30)
    assert engine.routed.keeps(W) == (64, 0)
    engine.routed.bound(W, 0, 12)
    assert engine.routed.keeps(W) == (0, 12)
    assert engine.routed.blocks(W) <= 12


def test_long_prompts_find_their_slots_again() -> None:
    engine = Engine(slots=2, thinned=True)
    engine.ask(1, 400, 0, output=20)
    engine.ask(2, 400, 0)

    assert engine.ask(1, 416, 401, output=20) == 401
    assert engine.ask(3, 400, 0) == 0
    assert engine.ask(2, 416, 0) == 0


def test_workers_with_slots_come_and_go() -> None:
    engine = Engine(slots=2)
    other = WorkerId("other")
    engine.routed.bound(other, 3, 100)

    engine.routed.remove_worker(W)

    assert (engine.routed.keeps(W), engine.routed.keeps(other)) == ((0, 0), (3, 0))
    engine.routed.bound(other, 0, 0)
    assert engine.routed.keeps(other) == (0, 0)
    for number in range(9):
        engine.routed.bound(WorkerId(f"w{number}"), 2, 100)
    engine.routed.remove_worker(WorkerId("w3"))
    assert engine.routed.keeps(WorkerId("w8")) == (2, 0)


def test_what_had_gone_shows_how_much_is_kept_and_that_older_prompts_went() -> None:
    engine = Engine()
    for family in range(9):
        engine.ask(family, 10 if family else 1, 0)
    assert engine.routed.blocks(W) == 81

    assert engine.ask(4, 12, 0) == 10
    assert engine.routed.keeps(W)[1] == 41
    for family in (1, 2, 3):
        assert engine.routed.find_matches(BlockHashes.of([family << 20], SIZE)) == {}
    assert engine.ask(5, 10, None) == 0, "there is no room for it beside those used since"
    assert engine.ask(4, 14, 12) == 12
    assert GovernedFleet(engine.scheduler).capacity_tokens(W) == 41 * SIZE
    assert GovernedFleet(engine.scheduler).contexts(W) == 0


def test_what_was_there_all_the_same_shows_that_more_is_kept_up_to_its_own_word() -> None:
    engine = Engine(blocks=44)
    for family in range(1, 6):
        engine.ask(family, 10, 0)
    assert engine.routed.blocks(W) == 44, "beyond its own word the oldest go"
    assert GovernedFleet(engine.scheduler).capacity_tokens(W) == 44 * SIZE
    engine.ask(2, 12, 0)
    limit = engine.routed.keeps(W)[1]
    assert limit < 44

    engine.ask(9, 10, 10)
    assert limit < engine.routed.keeps(W)[1] <= 44
    engine.ask(8, 30, 30)
    assert engine.routed.keeps(W)[1] == 44
    engine.routed.bound(W, 0, 1000)
    engine.ask(7, 30, 30)
    assert engine.routed.keeps(W)[1] == 1000, "it is not full: nothing follows"


def test_without_a_known_limit_more_than_was_believed_teaches_nothing() -> None:
    engine = Engine()

    engine.ask(1, 30, 30)

    assert engine.routed.keeps(W) == (0, 0)


def test_an_engine_that_counts_other_tokens_teaches_by_shares() -> None:
    engine = Engine()
    engine.ask(1, 20, 0)

    one = engine.begin(1, 20)
    assert engine.end(one, 10, counted=10 * SIZE) == 20
    assert engine.routed.keeps(W) == (0, 0), "all of it was there"
    one = engine.begin(1, 20)
    engine.end(one, 0, counted=0)
    assert engine.routed.keeps(W)[1] == 20


def test_what_siblings_told_of_is_forgotten_where_it_is_not_there() -> None:
    engine = Engine()
    known = [1 << 20 | depth for depth in range(20)]
    engine.hints.record_graded(W, grade(known, 20), 20, 0.5)

    assert engine.ask(1, 20, 8) == 20
    assert engine.hints.find_matches(BlockHashes.of(known, SIZE)) == {W: 8}
    engine.hints.record_graded(W, grade(known, 20), 20, engine.now)
    engine.ask(1, 20, 20)
    assert engine.hints.find_matches(BlockHashes.of(known, SIZE)) == {W: 20}


def test_an_answer_teaches_once_and_needs_a_worker_that_is_known() -> None:
    engine = Engine()
    one = engine.begin(1, 20)
    placed = one.placed
    assert placed is not None

    engine.routed.remove_worker(W)
    decider = engine.scheduler.decider
    decider.learn(placed, 320, 0, 1, 2.0)

    assert not placed.teaches
    with pytest.raises(ValueError, match="told by events"):
        decider.learn(placed, 320, 0, 1, 2.0)
    with pytest.raises(TypeError):
        decider.learn(one, 320, 0, 1, 2.0)  # type: ignore[arg-type]  # no Placed
    with pytest.raises(TypeError):
        decider.learn(placed, "320", 0, 1, 2.0)  # type: ignore[arg-type]  # no count
