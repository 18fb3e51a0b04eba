from kvmesh._native import Booking
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, Hashes
from kvmesh.core.members.late_prompts import LatePrompts
from kvmesh.core.members.loads import Demand, new_sequences

W, OTHER = WorkerId("w"), WorkerId("other")
KEPT_S = 300


class Board:
    """Bookings at two workers, of which one caches late, and what is believed cached there."""

    def __init__(self) -> None:
        self.sequences = new_sequences(16)
        self.believed: list[tuple[WorkerId, list[int], float]] = []
        self.late = LatePrompts({W}, self.sequences.bookings, self.believe)

    def believe(self, worker: WorkerId, hashes: Hashes, now: float, keep_s: int) -> None:
        assert keep_s == KEPT_S
        self.believed.append((worker, list(hashes.upto(9)), now))

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


def test_what_a_peer_told_of_is_not_ones_own_to_believe() -> None:
    board = Board()
    board.sequences.add("p", W, Demand(16, 16, hashes=b"12345678"), 0.0)
    board.late.add(board.sequences.bookings["p"])

    board.late.begin(W, 1.5)

    assert board.believed == []


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
