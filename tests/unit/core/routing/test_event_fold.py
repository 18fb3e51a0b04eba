"""Booking records, folded one by one: names, states, failures, beliefs, bounds."""

import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import grade
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.members.loads import Demand
from kvmesh.core.members.outcomes import Verdict
from kvmesh.core.routing import event_fold
from tests.property.support.records import (
    bare,
    failed,
    grew,
    message,
    named,
    placed,
    state_begins,
    state_ends,
)
from tests.property.support.replica import Replica
from tests.reference.workers.speed_report import speed_report

W = WorkerId("w")
AMOUNTS = (40, 160, 120, 5)

pytestmark = pytest.mark.parametrize("compiled", [False, True])


def replica_of(compiled: bool, *late: str) -> Replica:
    replica = Replica("w", "v", compiled=compiled, late=late)
    assert replica.peers.receive("p", message(named(0, "w"), named(1, "v")), 0.0)
    return replica


def test_a_booking_counts_in_the_loads_until_its_end(compiled: bool) -> None:
    replica = replica_of(compiled)
    loads = replica.sequences.loads(W)

    replica.peers.receive("p", message(placed(9, 0, AMOUNTS), first_seq=3), 1.0)
    assert (loads.prompt_tokens, loads.prefill_tokens, loads.expected_blocks) == (160, 120, 5)
    replica.peers.receive("p", message(bare(1, 9), grew(9, 6), first_seq=4), 1.5)
    assert (loads.prefill_tokens, loads.active_blocks, loads.expected_blocks) == (0, 42, 3)
    replica.peers.receive("p", message(bare(3, 9), first_seq=6), 3.0)

    assert (loads.active_requests, loads.active_blocks) == (0, 0)
    report = speed_report(replica.scheduler.speeds, W)
    assert report.residence_ms == pytest.approx(2000.0)
    assert report.output_tokens == 6
    assert replica.membership.health.recent("w") == (0, 1)


def test_what_was_sent_somewhere_counts_as_cached_there(compiled: bool) -> None:
    replica = replica_of(compiled)
    prompt = [*range(100, 140)]
    graded = list(grade(prompt, 40))

    replica.peers.receive("p", message(placed(1, 0, AMOUNTS, graded), first_seq=3), 0.0)
    replica.peers.receive("p", message(placed(2, 1, AMOUNTS, graded, flags=1), first_seq=4), 0.0)

    assert replica.scheduler.overlaps.find_groups(BlockHashes.of(prompt, 4), 1.0)[0] == {W: 40}
    for number in (1, 2):
        booking = replica.sequences.bookings[f"p#{number}"]
        assert booking.keys == (prompt[15], prompt[31])


def test_an_answer_that_began_elsewhere_ends_a_prefill_for_ones_own_late_prompts(
    compiled: bool,
) -> None:
    replica = replica_of(compiled, "w")
    scheduler = replica.scheduler
    replica.peers.receive("p", message(placed(9, 0, AMOUNTS), first_seq=3), 1.0)
    own = Demand(40, 40, hashes=BlockHashes.of([*range(10)], 4))
    replica.sequences.add("own", W, own, 1.0)
    scheduler.late.add(replica.sequences.bookings["own"])

    replica.peers.receive("p", message(bare(1, 9), first_seq=4), 1.5)

    assert scheduler.late.waiting == {}


PROMPT = [*range(100, 140)]


def send(replica: Replica, number: int, seq: int) -> None:
    """Have the peer send the prompt to `w`."""
    booked = placed(number, 0, AMOUNTS, list(grade(PROMPT, 40)))
    replica.peers.receive("p", message(booked, first_seq=seq), 1.0)


def overlap(replica: Replica) -> int:
    found = replica.scheduler.overlaps.find_groups(BlockHashes.of(PROMPT, 4), 1.5)[0]
    return found.get(W, 0)


def test_a_peers_prompt_behind_others_prefills_is_believed_from_the_next_end_of_one(
    compiled: bool,
) -> None:
    replica = replica_of(compiled, "w")
    replica.peers.receive("p", message(placed(8, 0, AMOUNTS), first_seq=3), 1.0)
    send(replica, 9, 4)

    assert overlap(replica) == 0
    replica.peers.receive("p", message(bare(1, 8), first_seq=5), 1.5)

    assert overlap(replica) == 40


def test_a_peers_whole_answer_ends_a_prefill_too(compiled: bool) -> None:
    replica = replica_of(compiled, "w")
    replica.peers.receive("p", message(placed(8, 0, AMOUNTS, flags=2), first_seq=3), 1.0)
    send(replica, 9, 4)

    replica.peers.receive("p", message(bare(3, 8), first_seq=5), 1.5)

    assert overlap(replica) == 40


def test_a_peers_prompt_is_believed_at_once_where_it_is_prefilled_at_once(compiled: bool) -> None:
    idle = replica_of(compiled, "w")
    send(idle, 9, 3)
    told = replica_of(compiled, "w")
    told.peers.receive("p", message(placed(8, 0, AMOUNTS), state_begins(), first_seq=3), 1.0)
    send(told, 9, 5)
    doubted = replica_of(compiled, "w")
    doubted.scheduler.workers.distrusted.add(W)
    doubted.peers.receive("p", message(placed(8, 0, AMOUNTS), first_seq=3), 1.0)
    send(doubted, 9, 4)

    assert [overlap(one) for one in (idle, told, doubted)] == [40, 40, 40]


def test_a_peers_prompt_is_never_believed_where_answers_find_nothing_ahead(compiled: bool) -> None:
    replica = replica_of(compiled, "w")
    replica.scheduler.workers.late[W] = -1
    send(replica, 9, 3)

    replica.peers.receive("p", message(bare(1, 9), first_seq=4), 1.5)

    assert (overlap(replica), replica.scheduler.late.waiting) == (0, {})


def test_what_failed_is_believed_no_longer(compiled: bool) -> None:
    replica = replica_of(compiled)
    prompt = [*range(100, 140)]
    booked = placed(1, 0, AMOUNTS, list(grade(prompt, 40)))
    replica.peers.receive("p", message(booked, first_seq=3), 0.0)

    replica.peers.receive("p", message(failed(1, Verdict.WORKER, "reset", 0.5), first_seq=4), 0.1)

    # 40 of the 160 tokens were cached before.
    assert replica.scheduler.overlaps.find_groups(BlockHashes.of(prompt, 4), 1.0)[0] == {W: 8}
    assert (replica.ids("p"), replica.membership.health.recent("w")) == ([], (1, 1))


def test_a_second_attempt_takes_the_place_of_one_whose_failure_was_lost(compiled: bool) -> None:
    replica = replica_of(compiled)
    replica.sequences.add("p#2", W, Demand(40, 40), 0.0)
    replica.peers.receive("p", message(placed(1, 0, AMOUNTS), first_seq=3), 0.0)

    again = placed(1, 1, AMOUNTS)
    replica.peers.receive("p", message(again, placed(2, 1, AMOUNTS), first_seq=9), 0.5)
    replica.peers.receive("p", message(state_begins(), again, state_ends(), first_seq=11), 0.5)

    assert [(one.worker, one.booked_s) for one in replica.sequences.owned("p")] == [("v", 0.5)]
    assert replica.sequences.bookings["p#2"].worker == W
    assert replica.sequences.loads(W).active_requests == 1


def test_a_number_that_came_with_a_state_teaches_again_when_it_is_used_anew(compiled: bool) -> None:
    replica = replica_of(compiled)
    state = (state_begins(), placed(1, 0, AMOUNTS), state_ends())
    replica.peers.receive("p", message(*state, bare(3, 1), first_seq=3), 0.0)

    replica.peers.receive("p", message(placed(1, 0, AMOUNTS), first_seq=7), 1.0)
    replica.peers.receive("p", message(bare(1, 1), grew(1, 6), bare(3, 1), first_seq=8), 3.0)

    assert speed_report(replica.scheduler.speeds, W).residence_ms == pytest.approx(2000.0)


def test_an_end_that_comes_after_the_lease_is_over_counts_for_nothing(compiled: bool) -> None:
    replica = replica_of(compiled)
    replica.peers.receive("p", message(placed(1, 0, AMOUNTS), first_seq=3), 0.0)
    assert len(replica.sequences.expire(11.0)) == 1

    replica.peers.receive("p", message(bare(1, 1), grew(1, 6), bare(3, 1), first_seq=4), 12.0)

    assert replica.membership.health.recent("w") == (0, 0)
    assert speed_report(replica.scheduler.speeds, W).residence_ms == pytest.approx(0.0)


def test_a_state_ends_what_is_not_in_it_and_teaches_no_speeds(compiled: bool) -> None:
    replica = replica_of(compiled)
    reported = [placed(number, 0, AMOUNTS) for number in (1, 2)]
    replica.peers.receive("p", message(*reported, first_seq=3), 0.0)

    state = [state_begins(), named(0, "w"), reported[1], placed(3, 0, AMOUNTS), state_ends()]
    assert replica.peers.receive("p", message(*state, first_seq=9), 5.0)
    assert replica.ids("p") == ["p#2", "p#3"]
    replica.peers.receive("p", message(bare(1, 3), grew(3, 50), bare(3, 3), first_seq=14), 9.0)

    report = speed_report(replica.scheduler.speeds, W)
    assert (report.prefill_evidence_tokens, report.residence_ms) == (0, 0)
    assert replica.ids("p") == ["p#2"]
    assert replica.membership.health.recent("w") == (0, 1)


def test_a_state_with_a_gap_or_an_unknown_name_is_worthless(compiled: bool) -> None:
    replica = replica_of(compiled)
    replica.peers.receive("p", message(placed(1, 0, AMOUNTS), first_seq=3), 0.0)

    assert replica.peers.receive("p", message(state_begins(), first_seq=4), 0.0)
    assert not replica.peers.receive("p", message(state_ends(), first_seq=6), 0.0)
    reported = message(state_begins(), placed(2, 77, AMOUNTS), state_ends(), first_seq=7)
    assert not replica.peers.receive("p", reported, 0.0)

    assert replica.ids("p") == ["p#1"]
    assert replica.peers.statistics().gaps == 1


def test_a_peer_may_name_only_so_many_workers(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_fold, "MOST_NAMED", 3)
    replica = replica_of(compiled)

    replica.peers.receive(
        "p", message(named(2, "x"), named(2, "y"), named(3, "w"), first_seq=3), 0.0
    )
    assert replica.peers.receive("p", message(placed(1, 3, AMOUNTS), first_seq=6), 0.0)
    assert not replica.peers.receive("p", message(placed(2, 0, AMOUNTS), first_seq=7), 0.0)

    assert replica.ids("p") == ["p#1"]


def test_many_of_a_peers_bookings_are_counted_anew_once_a_second(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_fold, "MOST_BOOKINGS", 4)
    replica = replica_of(compiled)
    rounds = [record for n in range(4) for record in (placed(n, 0, AMOUNTS), bare(3, n))]

    replica.peers.receive("p", message(*rounds, placed(9, 0, AMOUNTS), first_seq=3), 0.5)
    assert replica.ids("p") == []
    replica.peers.receive("p", message(placed(10, 0, AMOUNTS), first_seq=12), 1.5)

    assert replica.ids("p") == ["p#10"]
    assert replica.peers.statistics().refused == 1


def test_many_answers_of_one_message_are_all_counted(compiled: bool) -> None:
    replica = Replica(*(f"w{n}" for n in range(40)), compiled=compiled)
    names = [named(n, f"w{n}") for n in range(40)]
    booked = [placed(n, n % 40, AMOUNTS) for n in range(80)]
    ends = [record for n in range(80) for record in (bare(1, n), bare(3, n))]

    replica.peers.receive("p", message(*names), 0.0)
    replica.peers.receive("p", message(*booked, *ends, first_seq=41), 0.0)

    assert {replica.membership.health.recent(f"w{n}") for n in range(40)} == {(0, 2)}
    assert replica.ids("p") == []


def test_an_answer_ends_what_is_held_against_a_worker(compiled: bool) -> None:
    replica = replica_of(compiled)
    cut = [record for n in range(3) for record in (placed(n, 0, AMOUNTS), failed(n, 3, "500"))]
    replica.peers.receive("p", message(placed(9, 0, AMOUNTS), *cut, first_seq=3), 0.0)
    assert replica.membership.usable(0.0) == ("v",)

    replica.peers.receive("p", message(bare(1, 9), bare(3, 9), first_seq=10), 0.1)

    assert replica.membership.usable(0.1) == ("v", "w")


def test_a_stranger_is_forgotten_when_nothing_of_it_is_left(compiled: bool) -> None:
    replica = replica_of(compiled)
    booked = (named(5, "x"), placed(1, 5, AMOUNTS), placed(2, 5, AMOUNTS))
    replica.peers.receive("p", message(*booked, first_seq=3), 0.0)

    replica.peers.forget_strangers(event_fold.STRANGE_S)
    assert replica.ids("p") == ["p#1", "p#2"]
    replica.peers.receive("p", message(bare(3, 1), bare(3, 2), first_seq=6), 1.0)
    generation = replica.sequences.generation
    replica.peers.forget_strangers(event_fold.STRANGE_S)

    assert replica.sequences.generation == generation + 1


def test_the_names_of_all_peers_together_are_bounded(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_fold, "MOST_NAMES", 4)
    peers = replica_of(compiled).peers

    peers.receive("q", message(named(0, "w"), named(1, "v"), named(2, "x")), 0.0)
    refused = peers.statistics().refused
    peers.receive("q", message(named(0, "u"), first_seq=4), 0.0)
    peers.remove("p")
    peers.receive("r", message(named(0, "w"), named(1, "v")), 0.0)
    peers.receive("r", message(named(0, "w"), named(1, "v"), epoch=2), 0.0)

    assert (refused, peers.statistics().refused) == (1, 1)


def test_a_booking_that_moves_to_a_worker_without_a_name_is_none_any_more(compiled: bool) -> None:
    replica = replica_of(compiled)
    replica.peers.receive("p", message(placed(9, 0, AMOUNTS), first_seq=3), 1.0)

    assert not replica.peers.receive("p", message(placed(9, 5, AMOUNTS), first_seq=4), 1.0)

    assert (replica.ids("p"), replica.sequences.loads(W).active_requests) == ([], 0)
