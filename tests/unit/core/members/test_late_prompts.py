from collections.abc import Sequence

import pytest

from kvmesh._native import Booking
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, Hashes, pack_hashes
from kvmesh.core.members import late_prompts
from kvmesh.core.members.late_prompts import LatePrompts
from kvmesh.core.members.loads import Demand, new_sequences

W, OTHER = WorkerId("w"), WorkerId("other")
KEPT_S = 300


class Board:
    """Bookings at two workers, of which one caches late, and what is believed cached there."""

    def __init__(self) -> None:
        self.sequences = new_sequences(16)
        self.believed: list[tuple[WorkerId, list[int], float]] = []
        self.heard: list[tuple[WorkerId, list[int], int, float]] = []
        self.workers = {W: 0}
        self.late = LatePrompts(self.workers, self.sequences.bookings, self.believe, self.hear)

    def believe(self, worker: WorkerId, hashes: Hashes, now: float, keep_s: int) -> None:
        assert keep_s == KEPT_S
        self.believed.append((worker, list(hashes.upto(9)), now))

    def hear(self, worker: WorkerId, graded: Sequence[int], blocks: int, now: float) -> None:
        self.heard.append((worker, list(graded), blocks, now))

    def judge(self, *blocks: tuple[int, int, int]) -> int:
        """Return the score after answers whose blocks were predicted, reported and cached."""
        for one in blocks:
            self.late.judge(W, *one)
        return self.workers[W]

    def book(self, name: str, *, worker: WorkerId = W, streams: bool = True) -> Booking:
        hashes = BlockHashes.of([ord(name)], 16)
        self.sequences.add(
            name, worker, Demand(16, 16, streams=streams, hashes=hashes, keep_s=KEPT_S), 0.0
        )
        return self.sequences.bookings[name]

    def keep(self, *names: str) -> list[Booking]:
        made = [self.book(name) for name in names]
        for one in made:
            self.late.add(one)
        return made

    def end(self, booking: Booking, *, served: bool = True) -> None:
        self.sequences.finish(booking.request_id)
        self.late.end(booking, 2.0, served=served)


def test_a_booking_that_is_gone_or_whose_prompt_was_let_go_does_not_count() -> None:
    board = Board()
    board.keep("a", "b", "c")
    board.sequences.first_token("a", 1.0)
    board.sequences.finish("b")
    board.book("b", worker=OTHER)

    board.late.begin(W, 1.5)

    assert board.believed == [(W, [ord("c")], 1.5)]


def test_a_peers_prompt_is_heard_of_as_long_as_it_is() -> None:
    board = Board()
    board.sequences.add("p", W, Demand(64, 64, hashes=pack_hashes([7])), 0.0)
    board.late.add(board.sequences.bookings["p"], 4)

    board.late.begin(W, 1.5)

    assert (board.believed, board.heard) == ([], [(W, [7], 4, 1.5)])


def test_what_is_sent_before_and_not_found_four_times_outweighs_what_events_told_late() -> None:
    board = Board()

    assert board.judge((9, 0, 9), (5, 0, 9), (0, 0, 2)) == 3
    assert board.judge((0, 0, 1), (9, 9, 0), (4, 4, 4), (5, 4, 4)) == 3, "says nothing"
    assert board.judge((9, 3, 3)) == -1
    assert board.judge(*[(9, 3, 7)] * 9) == -8
    assert board.judge(*[(3, 3, 9)] * 99) == 8


def test_a_worker_that_does_not_cache_late_has_no_score() -> None:
    board = Board()

    board.late.judge(OTHER, 9, 0, 0)

    assert board.workers == {W: 0}


def test_where_nothing_sent_before_is_found_nothing_is_kept_for_later() -> None:
    board = Board()
    board.judge((9, 0, 0))

    board.keep("a")

    assert board.late.waiting == {}


def test_what_is_kept_back_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_prompts, "MOST_WAITING", 2)
    board = Board()

    board.keep("a", "b", "c")

    assert list(board.late.waiting[W]) == ["a", "b"]


def test_an_end_of_decoding_ends_no_prefill() -> None:
    board = Board()
    decodes = board.book("a")
    board.sequences.first_token("a", 1.0)
    board.keep("b")

    board.end(decodes)

    assert (board.believed, list(board.late.waiting[W])) == ([], ["b"])


def test_an_answer_whose_first_token_nobody_saw_ends_a_prefill() -> None:
    board = Board()
    whole = board.book("a", streams=False)
    board.keep("b")

    board.end(whole)

    assert board.believed == [(W, [ord("b")], 2.0)]


def test_a_served_prompt_counts_and_a_failed_one_does_not() -> None:
    board = Board()
    failed, served = board.keep("a", "b")

    board.end(failed, served=False)
    assert board.believed == []
    board.end(served)
    board.end(served)

    assert board.believed == [(W, [ord("b")], 2.0)]
    assert board.late.waiting == {}
