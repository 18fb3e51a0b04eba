from kvmesh.app.picker.counts import PickCounts
from kvmesh.transport.grpc.extproc_messages import BUFFERED, FULL_DUPLEX, NO_BODY, Modes


def test_modes_are_counted_by_name_and_unknown_ones_together() -> None:
    counts = PickCounts()

    for modes in (Modes(FULL_DUPLEX, FULL_DUPLEX), Modes(BUFFERED, NO_BODY)):
        counts.begin(modes)
    for number in (5, 7, 2**31):
        counts.begin(Modes(number, FULL_DUPLEX))

    assert counts.modes == {
        ("full-duplex", "full-duplex"): 1,
        ("buffered", "none"): 1,
        ("unknown", "full-duplex"): 3,
    }
