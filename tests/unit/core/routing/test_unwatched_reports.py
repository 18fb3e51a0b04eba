from kvmesh._native import Booking
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.loads import LOCAL, Demand, new_sequences
from kvmesh.core.routing.unwatched_reports import Followed, Reports, Span

W1 = WorkerId("w1")


def booking(request_id: str, booked_s: float = 0.0, owner: str = LOCAL) -> Booking:
    sequences = new_sequences(16)
    sequences.add(request_id, W1, Demand(10, 10), booked_s, owner)
    return sequences.bookings[request_id]


def followed(one: Booking) -> Followed:
    return Followed(one, None, 0.0, 0)


def taken(reports: Reports, bookings: list[Booking], now: float) -> list[tuple[str, Span]]:
    ours = {one.request_id: followed(one) for one in bookings if one.owner == LOCAL}
    found = reports.take(bookings, ours, lambda one: one.booked_s, now)
    return [(one.booking.request_id, span) for one, span in found]


def make_reports() -> Reports:
    return Reports(age_s=1.0, fresh_s=5.0, most_s=100.0)


def test_what_is_missing_ended_between_two_reports() -> None:
    reports = make_reports()
    reports.receive(W1, 2, 10.0)
    first = taken(reports, [booking("a"), booking("b")], 10.0)
    reports.receive(W1, 1, 12.0)

    assert first == []
    assert taken(reports, [booking("a"), booking("b")], 12.0) == [("a", Span(9.0, 11.0))]


def test_a_report_counts_once() -> None:
    reports = make_reports()
    reports.receive(W1, 0, 12.0)

    assert reports.has_updates()
    assert taken(reports, [booking("a")], 12.0)
    assert not reports.has_updates()
    assert taken(reports, [booking("a")], 12.0) == []


def test_what_ended_as_predicted_is_shown_first() -> None:
    reports = make_reports()
    reports.receive(W1, 2, 10.0)
    taken(reports, [], 10.0)
    reports.presume(followed(booking("presumed")), 10.5)
    reports.receive(W1, 1, 12.0)
    shown = [one for one, _ in taken(reports, [booking("a")], 12.0)]
    reports.receive(W1, 0, 13.0)

    assert shown == ["presumed"]
    assert [one for one, _ in taken(reports, [booking("a")], 13.0)] == ["a"]


def test_nothing_is_presumed_while_no_report_could_show_it() -> None:
    reports = make_reports()
    reports.presume(followed(booking("never heard")), 1.0)
    reports.receive(W1, 1, 2.0)
    taken(reports, [], 2.0)
    reports.presume(followed(booking("long ago")), 7.1)
    reports.receive(W1, 0, 8.0)

    assert taken(reports, [], 8.0) == []
