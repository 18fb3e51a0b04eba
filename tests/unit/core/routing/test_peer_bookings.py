import random

import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.index.approx import new_approx
from kvmesh.core.members.loads import Demand, new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import Verdict
from kvmesh.core.routing.booking_events import Ended, Grew, Prefilled, StateBegins, StateEnds
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.core.routing.event_fold import as_name_key
from kvmesh.core.routing.peer_bookings import PeerBookings
from kvmesh.core.routing.peer_records import PlacedRecord, Record, RecordBatch
from kvmesh.core.routing.scheduler import Scheduler
from tests.reference.workers.speed_report import speed_report
from tests.reference.workers.turns import WorkerTurns

W = WorkerId("w")
NAMES = ("w", "v")
"""Workers, by their numbers."""


class GatewayMessage:
    """One replica that hears of another's bookings."""

    def __init__(self) -> None:
        self.sequences = new_sequences(4, lease_s=10.0)
        self.scheduler = Scheduler(
            RouterOptions(block_size=4),
            random.Random(1),
            membership=Membership(),
            sequences=self.sequences,
            routed=new_approx(),
        )
        self.scheduler.listen(new_approx(graded=True))
        self.peers = PeerBookings(self.scheduler)

    def receive(self, first_seq: int, *events: Record, epoch: int = 1, now: float = 0.0) -> bool:
        self.peers.apply("p", RecordBatch(epoch, 1, []), now)
        for number, name in enumerate(NAMES):
            self.peers._peers["p"].workers[as_name_key(number)] = name
        return self.peers.apply("p", RecordBatch(epoch, first_seq, list(events)), now)

    def ids(self) -> list[str]:
        return [one.request_id for one in self.sequences.owned("p")]


def placed(request_id: str) -> PlacedRecord:
    keys = pack_hashes([0, 0, 0, 1, 0, 0, 0, 2])
    return PlacedRecord(request_id, 0, 34, 136, 30, 5, keys)


def sized(
    request_id: str, tokens: int, uncached: int, *, streams: bool = True, turn: bool = False
) -> PlacedRecord:
    blocks = tokens // 4
    return PlacedRecord(request_id, 0, blocks, tokens, uncached, 5, streams=streams, turn=turn)


def test_speeds_are_learned_from_what_peers_see() -> None:
    hints = GatewayMessage()
    hints.receive(1, sized("q", 8000, 8000), sized("r", 8000, 8000), now=0.0)
    hints.receive(3, Prefilled("q"), now=0.8)
    hints.receive(4, Prefilled("r"), now=1.6)
    hints.receive(5, Grew("q", 100), Ended("q"), now=3.8)

    report = speed_report(hints.scheduler.speeds, W)
    assert report.prefill_evidence_tokens == 8000
    assert report.ms_per_output_token == pytest.approx(30.0)
    assert report.residence_ms == pytest.approx(3800.0)
    assert report.output_tokens == 100


def test_a_gap_makes_the_peer_incomplete_until_its_whole_state_came() -> None:
    hints = GatewayMessage()
    hints.receive(1, placed("lost-end"), placed("kept"))

    assert not hints.receive(4, placed("new"))
    assert hints.peers.incomplete() == ["p"]
    assert hints.receive(5, StateBegins(), placed("kept"), placed("new"), StateEnds())

    assert (hints.ids(), hints.peers.incomplete()) == (["kept", "new"], [])
    assert hints.peers.statistics().gaps == 1


def test_a_peer_cannot_change_what_others_booked() -> None:
    hints = GatewayMessage()
    hints.sequences.add("mine", W, Demand(40, 40), 0.0)

    hints.receive(1, placed("mine"), Prefilled("mine"), Grew("mine", 99), Ended("mine"), Ended("x"))

    assert hints.sequences.loads(W).prefill_tokens == 40


@pytest.mark.parametrize(
    ("end", "recent"), [(Ended("q", Verdict.WORKER, "cut"), (1, 1)), (Ended("q"), (0, 1))]
)
def test_so_does_the_end_of_a_booking_that_came_with_a_state(
    end: Ended, recent: tuple[int, int]
) -> None:
    hints = GatewayMessage()
    hints.scheduler.workers.membership.add(W, 0.0)
    hints.receive(5, StateBegins(), placed("q"), StateEnds())

    hints.receive(8, end, now=50.0)

    assert (hints.ids(), hints.scheduler.workers.membership.health.recent(W)) == ([], recent)
    assert hints.scheduler.speeds.residence_ms(W) == 0.0


def test_a_peers_verdict_on_a_prompt_forgives_here_too() -> None:
    hints = GatewayMessage()
    hints.scheduler.workers.membership.add(W, 0.0)
    hints.scheduler.workers.membership.add("v", 0.0)
    elsewhere = PlacedRecord("q", 1, 10, 40, 30, 5)
    hints.receive(1, placed("q"), Ended("q", Verdict.WORKER, "reset"))
    assert hints.scheduler.workers.everyone(0.0) == ("v",)

    hints.receive(3, elsewhere, Ended("q", Verdict.PROMPT, "reset"))

    assert hints.scheduler.workers.everyone(0.0) == ("v", W)


def test_a_peers_turn_counts_as_this_replicas_own_and_is_counted_once() -> None:
    hints = GatewayMessage()
    turns = WorkerTurns(hints.sequences.turns)
    workers = [W, WorkerId("x")]
    assert turns.next(workers, "") == W

    hints.receive(1, sized("q", 40, 30, turn=True))
    hints.receive(2, StateBegins(), sized("q", 40, 30, turn=True), StateEnds())

    assert turns.next(workers, "") == "x"
    turns.take(WorkerId("x"))
    assert turns.next(workers, "") == W
    hints.receive(5, sized("by cache", 40, 30))
    assert turns.next(workers, "") == W


def test_answers_that_are_not_streamed_grow_alike_at_both_replicas() -> None:
    home, hints = GatewayMessage(), GatewayMessage()
    for scheduler in (home.scheduler, hints.scheduler):
        scheduler.speeds.output(W, 100, 2.0)
    home.sequences.add("q", W, Demand(40, 30, 20, streams=False), 0.0)
    hints.receive(1, sized("q", 40, 30, streams=False))

    for now in (0.5, 1.1, 60.0):
        home.scheduler.grow_unseen(now)
    hints.scheduler.grow_unseen(60.0)

    loads = [one.sequences.loads(W) for one in (home, hints)]
    assert [(one.active_blocks, one.expected_blocks) for one in loads] == [(15, 0)] * 2


def test_a_restarted_peer_takes_its_bookings_along() -> None:
    hints = GatewayMessage()
    hints.receive(1, placed("old"))

    assert hints.receive(1, placed("new"), epoch=2)
    assert hints.receive(2, placed("late"), epoch=1)

    assert hints.ids() == ["new"]
