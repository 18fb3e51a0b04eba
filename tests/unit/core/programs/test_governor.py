from math import inf

import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.bookkeeper import CLAIM_S
from kvmesh.core.programs.governor import LAPSE_S, LOOKED_AT, Governor
from kvmesh.core.programs.held import GovernorOptions
from kvmesh.core.programs.pricing import LEAST_TURNOVER, WORTH
from kvmesh.core.programs.swaps import SWAP
from kvmesh.core.programs.turn import Grant
from tests.unit.core.programs.program_cases import (
    W1,
    W2,
    W3,
    SmallFleet,
    key,
    make_end,
    make_governor,
    make_turn,
    take,
)

SWAPPED_S = SWAP * 0.7
"""An engine is left in peace for so long for a context of 700 tokens."""


def quick_fleet(**more: int) -> SmallFleet:
    """Return engines with room for one context, that compute 1,000 tokens in a second."""
    fleet = SmallFleet(w1=1000, **more)
    fleet.per_token_ms = 1.0
    return fleet


def write(governor: Governor, worker: WorkerId, tokens: int) -> None:
    """Have an engine compute so many tokens for somebody who leaves nothing reserved."""
    turn = make_turn("writer", 1, final=True)
    governor.chosen(turn, worker, 1.0)
    governor.ended(turn, make_end(worker, output_tokens=0, computed_tokens=tokens), 1.0)


def test_a_younger_program_waits_until_an_older_one_ends() -> None:
    governor = make_governor(SmallFleet(w1=1000))
    old, young = make_turn("a", 700, final=True), make_turn("b", 700)
    assert governor.ask(old, 0.0) is not None
    governor.chosen(old, W1, 0.0)

    assert governor.ask(young, 1.0) is None
    assert governor.release(2.0) == []
    governor.ended(old, make_end(), 3.0)

    assert [name for name, _ in governor.release(3.0)] == ["b/1"]
    assert not governor.waiting


def test_no_turn_is_held_beyond_the_bound() -> None:
    governor = make_governor(SmallFleet(w1=1000), max_wait_s=30.0)
    old, young = make_turn("a", 700), make_turn("b", 700)
    governor.ask(old, 0.0)
    governor.chosen(old, W1, 0.0)
    assert governor.ask(young, 1.0) is None

    assert governor.release(30.9) == []
    assert governor.next_s(30.9) == 31.0
    assert [name for name, _ in governor.release(31.0)] == ["b/1"]
    assert governor.statistics().late == 1
    sibling = make_governor(SmallFleet(w1=1000))
    assert sibling.receive(key("b"), governor.table.agents[key("b")].record(35.0), 36.0) == ""
    assert sibling.table.agents[key("b")].late_s == 32.0


def test_a_replica_hears_what_another_placed() -> None:
    one, two = (make_governor(SmallFleet(w1=1000)) for _ in range(2))
    old, young = make_turn("a", 700), make_turn("b", 700)
    one.ask(old, 0.0)
    one.chosen(old, W1, 0.0)

    for name, agent in one.updates.items():
        assert two.receive(name, agent.record(0.0), 0.0) == ""

    assert two.ask(young, 1.0) is None
    assert two.cancel("b/1")
    assert two.table.agents[key("b")].phase == "paused"
    assert not two.cancel("b/1")
    assert two.receive(key("a"), one.updates[key("a")].record(1.0), 1.0) == ""


def test_a_pause_keeps_its_reservation_for_as_long_as_five_prefills() -> None:
    governor = make_governor(SmallFleet(w1=1000), max_wait_s=1000.0)
    turn = take(governor, "a", 590, 0.0)
    governor.ended(turn, make_end(), 10.0)

    assert governor.ask(make_turn("b", 600), 11.0) is None
    assert (governor.next_s(11.0), governor.release(11.0)) == (11.0, [])
    assert governor.next_s(11.0) == pytest.approx(10.0 + WORTH * 600 * 0.1)
    assert [name for name, _ in governor.release(governor.next_s(11.0))] == ["b/1"]


def test_who_was_let_go_late_keeps_its_cache_for_as_long_as_it_waited_at_most() -> None:
    governor = make_governor(SmallFleet(w1=1000), max_wait_s=30.0)
    old = take(governor, "a", 700, 0.0)
    governor.ask(make_turn("b", 700), 0.0)
    assert [name for name, _ in governor.release(30.0)] == ["b/1"]
    governor.chosen(make_turn("b", 700), W1, 30.0)
    governor.ended(old, make_end(), 31.0)
    governor.ended(make_turn("b", 700), make_end(), 31.0)

    assert governor.ask(make_turn("b", 720, 2), 32.0) == Grant(frozenset({W1}))
    governor.chosen(make_turn("b", 720, 2), W1, 32.0)
    assert governor.ask(make_turn("a", 720, 2), 32.0) is None
    assert [name for name, _ in governor.release(62.0)] == ["a/2"]


def test_what_fits_no_cache_goes_to_one_that_nobody_needs() -> None:
    governor = make_governor(SmallFleet(w1=1000))

    assert governor.ask(make_turn("a", 5000), 0.0) is not None
    governor.chosen(make_turn("a", 5000), W1, 0.0)
    assert governor.ask(make_turn("b", 5000), 0.0) is None


def test_a_turn_that_failed_is_taken_again_without_a_wait() -> None:
    governor = make_governor(SmallFleet(w1=1000))
    turn = take(governor, "a", 500, 0.0)
    governor.chosen(make_turn("b", 900), W1, 0.0)
    governor.ended(turn, make_end(served=False), 1.0)

    assert governor.ask(make_turn("a", 500, 2), 2.0) == Grant()
    assert governor.ask(make_turn("a", 500, 3), 2.0) == Grant(frozenset({W1})), "once"


def test_a_tenant_beyond_its_share_makes_room_for_another() -> None:
    governor = make_governor(SmallFleet(w1=1000), max_wait_s=1000.0)
    for name in ("a", "b", "c"):
        take(governor, name, 300, 0.0, tenant="greedy")

    assert governor.ask(make_turn("d", 300, tenant="greedy"), 1.0) is None
    assert governor.ask(make_turn("e", 300, tenant="modest"), 1.0) == Grant(frozenset({W1}))


def test_of_waiting_turns_the_tenant_with_least_goes_first_then_priority_then_age() -> None:
    governor = make_governor(SmallFleet(w1=1000), max_wait_s=1000.0)
    take(governor, "a", 400, 0.0, tenant="x", priority=9)
    take(governor, "b", 100, 0.0, tenant="y", priority=9)
    filler = take(governor, "c", 490, 0.0, tenant="z", priority=9)
    for name, tenant, priority in (("d", "x", 0), ("e", "y", 0), ("f", "y", 1), ("g", "y", 1)):
        assert governor.ask(make_turn(name, 240, tenant=tenant, priority=priority), 1.0) is None
    filler = make_turn("c", 490, tenant="z", priority=9, final=True)
    governor.ended(filler, make_end(), 2.0)

    assert [name for name, _ in governor.release(2.0)] == ["f/1", "g/1"]


def test_a_sub_agent_ranks_with_its_program() -> None:
    governor = make_governor(SmallFleet(w1=1000), max_wait_s=1000.0)
    root = take(governor, "root", 300, 0.0)
    other = take(governor, "other", 600, 1.0)
    assert governor.ask(make_turn("young", 500), 2.0) is None
    assert governor.ask(make_turn("child", 500, program="root"), 3.0) is None
    governor.ended(other, make_end(served=False), 4.0)
    governor.removed(W2)
    governor.ended(root, make_end(), 4.0)

    assert governor.release(4.0 + WORTH * 600 * 0.1)[0][0] == "child/1"


def test_where_computing_anew_is_cheap_nothing_is_held() -> None:
    fleet = SmallFleet(w1=1000)
    fleet.per_token_ms = 1.0
    governor = make_governor(fleet)
    now = 0.0
    for number in range(40):
        turn = make_turn("a", 500, number)
        governor.chosen(turn, W1, now)
        governor.ended(turn, make_end(output_tokens=100), now + 2.0)
        now += 3.0
    governor.chosen(make_turn("a", 900, 99), W1, now)

    assert governor.pace.turnover(1000, 1.0) < LEAST_TURNOVER
    assert governor.ask(make_turn("b", 900), now) == Grant()
    assert governor.passes(key("c"), 900, now)


@pytest.mark.parametrize(("lost_share", "weight"), [(0.0, 1), (0.06, 1), (0.0625, 32), (1.0, 32)])
def test_where_contexts_are_evicted_computing_anew_counts_more(
    lost_share: float, weight: int
) -> None:
    governor = make_governor(SmallFleet(w1=1000))
    governor.lost_share = lost_share

    assert governor.ask(make_turn("a", 100), 0.0) == Grant(None, weight)
    assert governor.check(make_turn("a", 100), 0.0) == Grant(None, weight)
    assert governor.check(make_turn("hasty", 100, patience_s=0.0), 0.0) == Grant(None, weight)
    assert governor.passes(key("b"), 100, 0.0) is (weight == 1), "else it has to be asked"


def test_a_context_that_is_gone_is_computed_where_the_least_is_reserved_for_others() -> None:
    governor = make_governor(SmallFleet(w1=10_000, w2=10_000, w3=20_000))
    governor.lost_share = 0.5
    take(governor, "w1's", 3000, 0.0)
    governor.chosen(make_turn("w2's", 2000), W2, 0.0)
    governor.chosen(make_turn("w3's", 4000), W3, 0.0)
    turn = take(governor, "a", 1000, 0.0)
    governor.ended(turn, make_end(output_tokens=0), 1.0)
    again = make_turn("a", 1000, 2)
    take(governor, "new", 1000, 1.0)

    assert governor.ask(again, 1.0) == Grant(None, 32), "it may be there still"
    write(governor, W1, 9_999)
    assert governor.ask(again, 1.0) == Grant(None, 32)
    write(governor, W1, 1)
    assert governor.ask(again, 1.0) == Grant(frozenset({W2, W3}), 32)
    assert governor.check(again, 1.0) == Grant(frozenset({W2, W3}), 32)
    assert governor.ask(again, 1.0, {W1, W3}) == Grant(frozenset({W3}), 32)
    governor.lost_share = 0.0
    assert governor.ask(again, 1.0) == Grant()


def test_what_the_agent_itself_has_reserved_is_no_reason_to_leave() -> None:
    governor = make_governor(SmallFleet(w1=10_000, w2=10_000))
    governor.lost_share = 0.5
    governor.ended(take(governor, "a", 3000, 0.0), make_end(output_tokens=0), 1.0)
    write(governor, W1, 10_000)

    assert governor.ask(make_turn("a", 3000, 2), 1.0) == Grant(frozenset({W1, W2}), 32)


def test_a_context_that_is_gone_goes_anywhere_where_a_cache_is_of_unknown_size() -> None:
    fleet = SmallFleet(w1=10_000, w2=10_000)
    governor = make_governor(fleet)
    governor.lost_share = 0.5
    governor.ended(take(governor, "a", 3000, 0.0), make_end(output_tokens=0), 1.0)
    write(governor, W1, 10_000)
    fleet.tokens[W2] = 0

    assert governor.ask(make_turn("a", 3000, 2), 1.0) == Grant(None, 32)


def test_what_is_believed_of_an_engine_before_it_is_seen_is_no_measurement() -> None:
    fleet = SmallFleet(w1=1000)
    fleet.per_token_ms, fleet.seen = 1.0, False
    governor = make_governor(fleet)
    first = make_turn("a", 500)
    governor.chosen(first, W1, 0.0)
    governor.ended(first, make_end(), 1.0)
    known = governor.table.agents[key("a")]
    assert known.keep_s == pytest.approx(WORTH * known.tokens * 0.001)

    fleet.per_token_ms, fleet.seen = 100.0, True
    second = make_turn("a", 500, 2)
    governor.chosen(second, W1, 2.0)
    governor.ended(second, make_end(), 3.0)

    assert known.keep_s == pytest.approx(WORTH * known.tokens * 0.1)


def test_a_held_turn_whose_agent_was_forgotten_is_let_go_all_the_same() -> None:
    governor = make_governor(SmallFleet(w1=1000))
    take(governor, "a", 700, 0.0)
    assert governor.ask(make_turn("b", 700), 0.0) is None
    governor.table.remove(key("b"))

    assert [name for name, _ in governor.release(30.0)] == ["b/1"]
    assert governor.ask(make_turn("c", 700), 31.0) is None
    governor.table.remove(key("c"))
    assert governor.cancel("c/1")


def test_room_is_left_for_an_older_turn_that_a_sibling_holds() -> None:
    one, two = (make_governor(SmallFleet(w1=1000), max_wait_s=60.0) for _ in range(2))
    first = take(one, "a", 700, 0.0)
    assert one.ask(make_turn("old", 700), 1.0) is None
    for name, agent in one.updates.items():
        assert not two.receive(name, agent.record(1.0), 1.0)
    assert two.ask(make_turn("young", 700), 2.0) is None
    one.updates.clear()
    one.ended(make_turn("a", 700, final=True), make_end(), 3.0)
    for name, agent in one.updates.items():
        assert not two.receive(name, agent.record(3.0), 3.0)
    assert first.agent in one.updates

    assert (two.release(3.0), [name for name, _ in one.release(3.0)]) == ([], ["old/1"])
    assert [name for name, _ in two.release(62.0)] == ["young/1"]


def test_a_siblings_turn_that_should_be_over_has_no_claim() -> None:
    one, two = (make_governor(quick_fleet(), max_wait_s=inf) for _ in range(2))
    take(one, "a", 700, 0.0)
    one.ask(make_turn("old", 700), 1.0)
    for name, agent in one.updates.items():
        two.receive(name, agent.record(1.0), 1.0)
    two.ask(make_turn("young", 700), 5.0)
    due_s = 1.0 + SWAPPED_S + LAPSE_S

    assert two.release(due_s - 0.1) == []
    assert two.next_s(due_s - 0.1) == pytest.approx(due_s)
    assert [name for name, _ in two.release(due_s)] == ["young/1"]


def test_the_longest_waiting_goes_whatever_it_evicts_one_at_a_time_an_engine() -> None:
    governor = make_governor(quick_fleet(), max_wait_s=inf)
    take(governor, "a", 700, 0.0)
    for name, at_s in (("b", 1.0), ("c", 2.0)):
        assert governor.ask(make_turn(name, 700), at_s) is None
    assert governor.most_s("b/1") == pytest.approx(SWAPPED_S)
    assert governor.most_s("c/1") == pytest.approx(2 * SWAPPED_S)

    first_s = 1.0 + SWAPPED_S
    assert governor.release(first_s - 0.1) == []
    assert governor.next_s(first_s - 0.1) == pytest.approx(first_s)
    assert governor.release(first_s) == [("b/1", Grant(frozenset({W1})))]
    governor.chosen(make_turn("b", 700), W1, first_s)
    assert governor.release(first_s + SWAPPED_S - 0.1) == []
    assert governor.release(first_s + SWAPPED_S) == [("c/1", Grant(frozenset({W1})))]
    assert governor.statistics().late == 2


def test_a_swap_at_a_sibling_leaves_the_engine_in_peace_here() -> None:
    one, two = (make_governor(quick_fleet(), max_wait_s=inf) for _ in range(2))
    take(one, "a", 700, 0.0)
    take(two, "a", 700, 0.0)
    one.ask(make_turn("b", 700), 1.0)
    for name, agent in one.updates.items():
        two.receive(name, agent.record(1.0), 1.0)
    two.ask(make_turn("c", 700), 1.5)
    assert two.most_s("c/1") == pytest.approx(2 * SWAPPED_S)
    first_s = 1.0 + SWAPPED_S
    assert one.release(first_s)
    one.chosen(make_turn("b", 700), W1, first_s)
    for name, agent in one.updates.items():
        two.receive(name, agent.record(first_s), first_s)

    assert two.release(first_s + SWAPPED_S - 0.1) == []
    assert two.release(first_s + SWAPPED_S) == [("c/1", Grant(frozenset({W1})))]
    two.removed(W1)
    assert not two.release(first_s + SWAPPED_S)


def test_a_late_turn_goes_home_where_that_is_as_soon() -> None:
    governor = make_governor(quick_fleet(w2=1000), max_wait_s=inf)
    turn = make_turn("b", 700)
    governor.chosen(turn, W2, 0.0)
    governor.ended(turn, make_end(W2), 0.0)
    take(governor, "a", 700, 10.0)
    governor.chosen(make_turn("c", 700), W2, 10.0)
    assert governor.ask(make_turn("b", 700, 2), 11.0) is None

    assert governor.release(11.0 + SWAPPED_S) == [("b/2", Grant(frozenset({W2})))]


def test_a_swap_goes_where_siblings_count_it() -> None:
    one, two = (make_governor(quick_fleet(w2=1000), max_wait_s=inf) for _ in range(2))
    turn = make_turn("b", 700)
    for governor in (one, two):
        governor.chosen(turn, W2, 0.0)
        governor.ended(turn, make_end(W2), 0.0)
        take(governor, "a", 700, 10.0)
        governor.chosen(make_turn("c", 600), W2, 10.0)
        governor.chosen(make_turn("d", 100), W2, 10.0)
    assert one.ask(make_turn("b", 700, 2), 11.0) is None
    swapped = two.table.agents[key("d")]
    swapped.late_s, swapped.since_s, swapped.revision = 20.0, 20.0, 9
    assert not one.receive(swapped.key, swapped.record(20.0), 20.0)

    # Not at home, where a sibling has swapped since.
    assert one.release(11.0 + SWAPPED_S) == [("b/2", Grant(frozenset({W1})))]


def test_a_turn_let_go_late_elsewhere_and_long_ago_is_no_swap_of_its_engine_now() -> None:
    one, two = (make_governor(quick_fleet(), max_wait_s=inf) for _ in range(2))
    for governor in (one, two):
        take(governor, "a", 700, 0.0)
    assert one.ask(make_turn("b", 700), 1.0) is None
    moved = two.table.agents[key("a")]
    moved.late_s, moved.since_s, moved.revision = 5.0, 5.0 + 2 * CLAIM_S, 9
    assert not one.receive(moved.key, moved.record(8.0), 8.0)

    assert one.release(1.0 + SWAPPED_S) == [("b/1", Grant(frozenset({W1})))]


def test_what_requests_of_no_program_hold_is_no_room() -> None:
    fleet = SmallFleet(w1=1000)
    governor = make_governor(fleet, max_wait_s=1000.0)
    take(governor, "a", 400, 0.0)
    assert governor.check(make_turn("b", 590), 0.0) is not None
    fleet.active = {W1: 400 + 400}
    for second in range(1, 60):
        governor.measure_others(float(second))

    assert governor.ask(make_turn("b", 590), 60.0) is None
    fleet.active = {W1: 400}
    for second in range(61, 120):
        governor.measure_others(float(second))
    assert [name for name, _ in governor.release(120.0)] == ["b/1"]


def test_a_turn_that_is_placed_is_no_request_of_no_program() -> None:
    fleet = SmallFleet(w1=1000)
    governor = make_governor(fleet)
    for number in range(1, 60):
        fleet.active = {W1: 400}  # booked before the governor hears of it
        turn = make_turn("a", 400, number)
        governor.chosen(turn, W1, float(number))
        governor.ended(turn, make_end(), number + 0.5)
        fleet.active = {}

    assert governor.check(make_turn("b", 590), 60.0) is not None


def test_however_many_other_requests_a_quarter_is_left_to_programs() -> None:
    fleet = SmallFleet(w1=1000)
    governor = make_governor(fleet)
    fleet.active = {W1: 5000}
    take(governor, "a", 150, 0.0)
    for second in range(1, 60):
        governor.measure_others(float(second))

    assert governor.ask(make_turn("b", 90), 60.0) is not None
    governor.chosen(make_turn("b", 90), W1, 60.0)
    assert governor.ask(make_turn("c", 90), 60.0) is None


def test_a_bound_that_changes_holds_for_what_waits() -> None:
    governor = make_governor(SmallFleet(w1=1000))
    take(governor, "a", 700, 0.0)
    governor.ask(make_turn("b", 700), 0.0)
    governor.release(1.0)

    governor.change(GovernorOptions(max_wait_s=5.0))

    assert (governor.release(4.9), governor.next_s(4.9)) == ([], 5.0)
    assert (len(governor.release(5.0)), governor.next_s(6.0), governor.release(6.0)) == (1, inf, [])


@pytest.mark.parametrize(
    "options", [{"max_wait_s": 0.0}, {"max_waiting": 0}, {"max_waiting_per_tenant": 0}]
)
def test_what_may_not_wait_goes_anywhere(options: dict[str, object]) -> None:
    governor = make_governor(SmallFleet(w1=1000), **options)
    take(governor, "a", 700, 0.0)

    assert governor.ask(make_turn("b", 700), 0.0) == Grant()
    assert governor.check(make_turn("b", 700), 0.0) == Grant()


def test_only_so_many_are_looked_at_in_vain() -> None:
    governor = make_governor(SmallFleet(w1=1000), max_wait_s=60.0)
    take(governor, "a", 700, 0.0)
    for number in range(LOOKED_AT + 5):
        assert governor.ask(make_turn(f"b{number}", 700), 1.0) is None

    assert (governor.release(2.0), len(governor.release(61.0))) == ([], LOOKED_AT + 5)


def test_a_glance_at_the_caches_lasts_a_second() -> None:
    fleet = SmallFleet(w1=1000)
    workers = tuple(fleet.tokens)
    fleet.workers = lambda now: workers  # type: ignore[method-assign]  # noqa: ARG005  one object
    governor = make_governor(fleet)
    assert governor.passes(key("a"), 400, 0.0)

    fleet.tokens[W1] = 100
    assert governor.passes(key("a"), 400, 0.5)
    governor.chosen(make_turn("a", 40), W1, 0.5)
    assert not governor.passes(key("b"), 400, 2.0)


def test_a_siblings_later_turn_delays_none_and_one_that_was_forgotten_claims_none() -> None:
    one, two = (make_governor(quick_fleet(), max_wait_s=inf) for _ in range(2))
    take(two, "a", 700, 0.0)
    take(one, "a", 700, 0.0)
    two.ask(make_turn("b", 700), 1.0)
    one.ask(make_turn("later", 700), 2.0)
    for name, agent in one.updates.items():
        two.receive(name, agent.record(2.0), 2.0)

    assert two.release(SWAPPED_S) == two.release(SWAPPED_S + 0.5) == []
    two.table.remove(key("later"))
    assert [name for name, _ in two.release(1.0 + SWAPPED_S)] == ["b/1"]


def test_what_is_claimed_for_a_sibling_is_claimed_once() -> None:
    one, two = (make_governor(quick_fleet(w2=1000), max_wait_s=inf) for _ in range(2))
    for name, worker in (("a", W1), ("c", W2)):
        for governor in (one, two):
            governor.chosen(make_turn(name, 700), worker, 0.0)
    one.ask(make_turn("old", 700), 1.0)
    for name, agent in one.updates.items():
        two.receive(name, agent.record(1.0), 1.0)
    two.ask(make_turn("young", 700), 2.0)
    two.ended(make_turn("c", 700, final=True), make_end(W2), 3.0)

    assert two.release(3.0) == two.release(3.5) == []
    assert [name for name, _ in two.release(4.0)] == []


def test_when_turns_are_switched_off_all_that_wait_go() -> None:
    governor = make_governor(SmallFleet(w1=1000))
    take(governor, "a", 700, 0.0)
    governor.ask(make_turn("b", 700), 1.0)

    governor.change(GovernorOptions(turns=False))

    assert [name for name, _ in governor.release(1.5)] == ["b/1"]


def test_small_contexts_wait_too_where_an_engine_keeps_few_of_them() -> None:
    fleet = SmallFleet(w1=100_000)
    fleet.slots[W1] = 1
    governor = make_governor(fleet)
    old, young = make_turn("a", 500, final=True), make_turn("b", 500)
    assert governor.passes(old.agent, 500, 0.0)
    assert governor.ask(old, 0.0) is not None
    governor.chosen(old, W1, 0.0)

    assert not governor.passes(young.agent, 500, 2.0)
    assert governor.ask(young, 2.0) is None
    governor.ended(old, make_end(), 3.0)
    assert [name for name, _ in governor.release(3.0)] == ["b/1"]
