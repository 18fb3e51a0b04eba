"""What is known of a peer."""

import pytest

from kvmesh._native import Peer
from kvmesh.core.routing.event_fold import as_name_key


def test_what_is_known_of_a_peer_is_changed_in_place() -> None:
    peer = Peer("p", 1, 0.0)

    peer.next_seq, peer.booked, peer.complete = 2**62 + 2**32, 7, False
    peer.unconfirmed = {"p#1"}
    peer.workers[as_name_key(3)] = "w"
    peer.republished.add("p#2")

    assert (peer.next_seq, peer.booked, peer.complete) == (2**62 + 2**32, 7, False)
    assert (peer.unconfirmed, peer.workers, peer.republished) == (
        {"p#1"},
        {as_name_key(3): "w"},
        {"p#2"},
    )


@pytest.mark.parametrize("args", [(), ("p",), (b"p", 1, 0.0), ("p", 2**64, 0.0), ("p", 1, "x")])
def test_a_peer_of_something_else_is_refused(args: tuple[object, ...]) -> None:
    with pytest.raises((TypeError, OverflowError)):
        Peer(*args)  # type: ignore[arg-type]
