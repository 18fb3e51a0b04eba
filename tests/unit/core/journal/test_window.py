from kvmesh.core.journal.window import Parcel, SendWindow, WindowStatistics


def parcel(first_seq: int, last_seq: int | None = None, size: int = 1) -> Parcel:
    return Parcel(first_seq, first_seq if last_seq is None else last_seq, b"x" * size)


def sent(window: SendWindow, *numbers: int) -> list[int]:
    return [window.send(parcel(number), 0.0) for number in numbers]


def test_acknowledged_messages_leave_the_window_in_order() -> None:
    window = SendWindow(capacity=2)
    one, two = sent(window, 1, 2)
    assert not window.has_room()

    assert window.acknowledge(one, 10, 0.1)
    assert (len(window), window.confirmed_seq) == (1, 1)
    assert window.acknowledge(two, 11, 0.1)
    assert (len(window), window.confirmed_seq) == (0, 2)


def test_a_message_stored_before_its_predecessor_does_not_count() -> None:
    window = SendWindow(deadline_s=1.0)
    one, two = sent(window, 1, 2)
    window.acknowledge(two, 10, 0.1)
    again = window.overdue(1.0)

    window.acknowledge(again[0][0], 11, 1.1)

    assert [one.first_seq for _, one in again] == [1, 2]
    assert (len(window), window.confirmed_seq) == (1, 1)
    window.acknowledge(again[1][0], 12, 1.1)
    assert window.confirmed_seq == 2
    assert one not in dict(again)


def test_a_late_ack_of_an_earlier_sending_counts_when_its_place_is_right() -> None:
    window = SendWindow(deadline_s=1.0)
    [first] = sent(window, 1)
    window.overdue(1.0)

    window.acknowledge(first, 7, 1.2)

    assert window.confirmed_seq == 1


def test_unknown_and_repeated_tokens_change_nothing() -> None:
    window = SendWindow()
    [token] = sent(window, 1)
    window.acknowledge(token, 5, 0.0)

    assert window.acknowledge(token, 5, 0.0)
    assert window.acknowledge(999, 1, 0.0)
    assert window.confirmed_seq == 1


def test_a_position_before_a_confirmed_one_proves_a_new_journal() -> None:
    window = SendWindow()
    [one] = sent(window, 1)
    window.acknowledge(one, 100, 0.0)
    [two] = sent(window, 2)

    assert not window.acknowledge(two, 1, 0.0)

    window.abandon()
    [three] = sent(window, 3)
    assert window.acknowledge(three, 2, 0.0)
    assert window.confirmed_seq == 3


def test_a_new_journal_may_store_at_its_first_position() -> None:
    window = SendWindow()
    [one] = sent(window, 1)
    window.acknowledge(one, 100, 0.0)
    window.abandon()
    assert window.statistics() == WindowStatistics(0, 0, 0, 0)

    [two] = sent(window, 2)

    assert window.acknowledge(two, 1, 0.0)
    assert window.confirmed_seq == 2


def test_the_deadline_counts_from_the_first_message_in_flight() -> None:
    window = SendWindow(deadline_s=1.0)
    assert window.confirmed_seq == 0
    [one] = sent(window, 1)
    window.acknowledge(one, 1, 0.5)

    window.send(parcel(2), 5.0)
    window.send(parcel(3), 5.5)

    assert window.due_s() == 6.0


def test_sending_everything_again_is_counted_and_gets_a_whole_deadline() -> None:
    window = SendWindow(deadline_s=1.0)
    sent(window, 1, 2)
    window.overdue(1.0)
    window.overdue(3.0)

    window.resend(4.0)

    assert (window.due_s(), window.statistics().resends) == (5.0, 3)


def test_a_ring_keeps_what_just_fits_and_counts_what_is_rewound() -> None:
    window = SendWindow(ring_bytes=30, ring_s=10.0)
    for number in (1, 2, 3):
        token = window.send(parcel(number, size=10), 0.0)
        window.acknowledge(token, number, 0.0)
    assert window.statistics() == WindowStatistics(0, 3, 30, 0)

    assert window.rewind(3)

    assert window.statistics() == WindowStatistics(1, 2, 20, 0)
    [(again, _)] = window.resend(10.0)
    window.acknowledge(again, 4, 10.0)
    assert window.statistics().recent == 3


def test_the_deadline_doubles_up_to_four_times_while_nothing_is_stored() -> None:
    window = SendWindow(deadline_s=1.0)
    sent(window, 1)
    due: list[float | None] = []

    now = 0.0
    for _ in range(5):
        now = window.due_s() or 0.0
        window.overdue(now)
        due.append(window.due_s())

    assert due == [3.0, 7.0, 11.0, 15.0, 19.0]


def test_what_left_the_ring_or_is_too_much_cannot_be_sent_again() -> None:
    window = SendWindow(capacity=2, ring_s=1.0)
    for number in range(1, 5):
        [token] = sent(window, number)
        window.acknowledge(token, number, number * 0.6)

    assert not window.rewind(1)
    assert not window.rewind(9)
    assert window.rewind(3)

    crowded = SendWindow(capacity=1)
    for number in (1, 2):
        [token] = sent(crowded, number)
        crowded.acknowledge(token, number, 0.0)
    assert not crowded.rewind(1)


def test_a_ring_holds_no_more_than_its_bytes() -> None:
    window = SendWindow(ring_bytes=10)
    for number in (1, 2):
        token = window.send(parcel(number, size=6), 0.0)
        window.acknowledge(token, number, 0.0)
    assert window.statistics().recent == 1

    token = window.send(parcel(3, size=11), 0.0)
    window.acknowledge(token, 3, 0.0)
    assert window.statistics().recent_bytes == 0


def test_each_message_is_timed_once_from_its_first_sending() -> None:
    window = SendWindow(deadline_s=1.0, ring_s=10.0)
    window.send(parcel(1), 0.0)
    [(again, _)] = window.overdue(1.0)
    window.acknowledge(again, 1, 1.5)
    assert window.rewind(1)
    [(rewound, _)] = window.resend(5.0)

    window.acknowledge(rewound, 2, 9.0)

    assert (window.seconds.total, window.seconds.cumulative()[-1]) == (1.5, (float("inf"), 1))
