from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.journal.digest import Claim, DigestHistory, IndexDigest
from kvmesh.core.journal.ordering import Cursor

A, B = WorkerId("a"), WorkerId("b")


def test_no_block_is_lost_in_the_digest_whoever_holds_it() -> None:
    for number in range(16):
        empty, full = IndexDigest(), IndexDigest()
        worker = WorkerId(f"w{number}")
        empty.put(worker, Cursor(1, 2), 0)
        full.put(worker, Cursor(1, 2), 1 << 63)

        assert empty.digest != full.digest


def test_the_scope_tells_workers_and_how_far_they_are_read() -> None:
    digest = IndexDigest()
    scopes = {digest.scope}
    for cursor in (Cursor(1, 2), Cursor(1, 3), Cursor(2, 2)):
        digest.put(A, cursor, 10)
        scopes.add(digest.scope)
    digest.put(B, Cursor(1, 2), 10)

    assert len(scopes | {digest.scope}) == 5


def test_a_worker_left_out_leaves_nothing() -> None:
    digest = IndexDigest()
    assert digest.put(A, Cursor(1, 2), 10)
    assert not digest.put(A, Cursor(1, 3), 11)
    assert list(digest.workers()) == [A]

    assert digest.leave_out(A)

    assert not digest.leave_out(A)
    assert digest.claim(9) == Claim(9, 0, 0)


def test_a_peer_with_another_digest_at_the_same_sequence_is_found() -> None:
    history = DigestHistory()
    history.record(Claim(5, 50, 1))

    assert history.compare("peer", Claim(5, 50, 1)) is None
    assert (history.compare("peer", Claim(5, 51, 1)), history.compared) == (Claim(5, 51, 1), 2)


def test_claims_of_another_scope_or_a_forgotten_sequence_are_not_compared() -> None:
    history = DigestHistory(depth=2)
    for sequence in (1, 2, 3):
        history.record(Claim(sequence, sequence, 1))

    assert history.compare("peer", Claim(3, 99, 2)) is None
    assert history.compare("peer", Claim(1, 99, 1)) is None
    assert (history.compared, history.compare("peer", Claim(2, 99, 1))) == (0, Claim(2, 99, 1))
