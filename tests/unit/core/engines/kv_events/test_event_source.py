from collections.abc import Iterable

from kvmesh.core.engines.kv_events.event_source import (
    END_OF_REPLAY,
    EventSource,
    SourceOptions,
    batch_digest,
)
from kvmesh.core.engines.kv_events.source_actions import (
    Action,
    AskReplay,
    Deliver,
    Lost,
    Restarted,
    Resumed,
    SourceCaughtUp,
)

OPTIONS = SourceOptions(reply_timeout_s=2, max_failures=2, probe_interval_s=10, pending=5)


def payload(seq: int, engine: str = "a") -> bytes:
    return f"{engine}{seq}".encode()


def delivered(actions: Iterable[Action]) -> list[int]:
    return [action.seq for action in actions if isinstance(action, Deliver)]


def caught_up(batches: int = 0, *, can_replay: bool = True) -> EventSource:
    """A source that replayed `batches` batches and listens at time 0."""
    source = EventSource(OPTIONS, can_replay=can_replay)
    source.start(0)
    for seq in range(batches):
        source.on_reply(1, seq, payload(seq), 0)
    source.on_reply(1, END_OF_REPLAY, b"", 0)
    return source


def test_a_hole_that_never_fills_is_lost_and_the_rest_delivered() -> None:
    source = caught_up(1)
    source.on_live(9, payload(9), 0)
    source.on_reply(2, 0, payload(0), 0)
    assert source.on_reply(2, 3, payload(3), 0) == [AskReplay(3, 0)]
    source.on_reply(3, 0, payload(0), 0)

    assert source.on_reply(3, 3, payload(3), 0) == [Lost(1, 2), Deliver(3, payload(3))]
    assert source.lost_batches == 2


def test_pending_batches_are_not_lost_when_the_buffer_was_too_short() -> None:
    source = caught_up(1)
    source.on_live(2, payload(2), 0)
    source.on_live(4, payload(4), 0)

    actions = source.on_reply(2, 6, payload(6), 0)

    assert actions == [
        Lost(1, 1),
        Deliver(2, payload(2)),
        Lost(3, 3),
        Deliver(4, payload(4)),
        Lost(5, 5),
        Deliver(6, payload(6)),
    ]


def test_batches_already_replayed_are_not_delivered_from_the_pending_ones_again() -> None:
    source = caught_up()
    source.on_live(1, payload(1), 0)
    source.on_reply(2, 0, payload(0), 0)
    source.on_reply(2, 1, payload(1), 0)
    source.on_time(5)

    assert source.on_reply(3, 6, payload(6), 5) == [Lost(2, 5), Deliver(6, payload(6))]


def test_a_number_too_old_to_be_remembered_is_a_new_engine() -> None:
    source = EventSource(SourceOptions(remembered=2), can_replay=False)
    for seq in range(5):
        source.on_live(seq, payload(seq), 0)

    assert source.on_live(4, payload(4), 0) == []
    assert source.on_live(0, payload(0), 0)[0] == Restarted()


def test_numbers_going_back_while_waiting_are_a_new_engine() -> None:
    source = caught_up(1)
    source.on_live(5, payload(5), 0)

    assert source.on_live(3, payload(3, "b"), 0) == [Restarted(), AskReplay(3, 0)]


def test_after_a_reconnect_the_last_batch_is_compared() -> None:
    source = caught_up(3)

    assert (source.on_reconnect(0), source.on_reply(2, 2, payload(2), 0)) == ([AskReplay(2, 2)], [])
    assert source.on_reply(2, END_OF_REPLAY, b"", 0) == [SourceCaughtUp(2)]

    source.on_reconnect(0)
    assert source.on_reply(3, 2, payload(2, "b"), 0) == [Restarted(), AskReplay(4, 0)]


def test_after_a_reconnect_an_engine_that_cannot_prove_itself_is_a_new_one() -> None:
    source = caught_up(3)
    source.on_reconnect(0)
    assert source.on_reply(2, 8, payload(8), 0) == [Restarted(), AskReplay(3, 0)]

    source = caught_up(3)
    source.on_reconnect(0)
    source.on_live(3, payload(3), 0)
    source.on_time(3)
    assert source.on_time(6) == [Restarted(), Lost(0, 2), Deliver(3, payload(3))]


def test_an_empty_answer_without_a_reconnect_proves_nothing() -> None:
    source = caught_up(3)
    source.on_live(5, payload(5), 0)

    assert source.on_reply(2, END_OF_REPLAY, b"", 0) == [AskReplay(3, 2)]
    assert source.on_reply(3, END_OF_REPLAY, b"", 0) == [Lost(3, 4), Deliver(5, payload(5))]


def test_a_silent_replay_socket_is_given_up_and_tried_again_later() -> None:
    source = caught_up(1)
    source.on_live(3, payload(3), 0)

    assert (source.on_time(1), source.on_time(2)) == ([], [AskReplay(3, 0)])
    assert source.on_time(4) == [Lost(1, 2), Deliver(3, payload(3))]
    assert source.on_live(6, payload(6), 4) == [Lost(4, 5), Deliver(6, payload(6))]
    assert (source.on_time(15), source.on_time(40)) == ([], [AskReplay(4, 6)])


def test_an_answer_that_falls_silent_is_asked_for_again_soon() -> None:
    source = EventSource(SourceOptions(), can_replay=True)
    source.start(0)
    assert source.deadline == 2.0
    source.on_reply(1, 0, b"x", 1.0)

    assert (source.deadline, source.on_time(1.3)) == (1.3, [AskReplay(2, 0)])


def test_a_quiet_publisher_is_asked_for_a_lost_last_batch() -> None:
    source = caught_up(1)
    source.on_live(1, payload(1), 5)

    assert (source.on_time(11), source.on_time(15)) == ([], [AskReplay(2, 1)])
    source.on_reply(2, 1, payload(1), 15)
    assert delivered(source.on_reply(2, 2, payload(2), 15)) == [2]


def test_live_batches_pass_while_a_replay_is_under_way() -> None:
    source = caught_up(1)
    source.on_time(10)

    assert delivered(source.on_live(1, payload(1), 10)) == [1]
    assert source.on_live(0, payload(0), 10) == []
    assert source.on_reply(2, 0, payload(0), 10) == []
    assert source.on_reply(2, END_OF_REPLAY, b"", 10) == [SourceCaughtUp(1)]


def test_without_replay_gaps_are_lost_at_once() -> None:
    source = EventSource(OPTIONS, can_replay=False)

    assert source.start(0) == []
    assert source.on_live(2, payload(2), 0) == [Lost(0, 1), Deliver(2, payload(2))]
    assert source.on_reconnect(0) == []
    assert source.on_live(1, payload(1, "b"), 0) == [
        Restarted(),
        Lost(0, 0),
        Deliver(1, payload(1, "b")),
    ]
    assert source.on_time(100) == []


def test_an_engine_that_restarts_within_a_replay_is_followed_from_its_start() -> None:
    source = caught_up(2)
    source.on_time(10)
    source.on_live(5, payload(5), 10)
    source.on_reply(2, 1, payload(1), 10)
    source.on_reply(2, 2, payload(2), 10)
    source.on_reply(2, 3, payload(3), 10)
    source.on_reply(2, 4, payload(4), 10)
    source.on_reply(2, 5, payload(5, "b"), 10)

    assert source.on_reply(2, END_OF_REPLAY, b"", 10) == [Restarted(), AskReplay(3, 0)]


def test_everything_can_be_had_anew() -> None:
    source = caught_up(3)

    assert (source.begin_again(0), source.begin_again(0)) == ([AskReplay(2, 0)], [])
    assert source.on_reply(2, 0, payload(0), 0) == [Restarted(), AskReplay(3, 0)]
    assert (source.on_reply(2, 1, payload(1), 0), source.on_live(3, payload(3), 0)) == ([], [])
    for seq in range(3):
        assert source.on_reply(3, seq, payload(seq), 0) == [Deliver(seq, payload(seq))]
    assert source.on_reply(3, END_OF_REPLAY, b"", 0) == [Deliver(3, payload(3)), SourceCaughtUp(3)]


def test_nothing_is_thrown_away_when_not_all_can_be_had_anew() -> None:
    source = caught_up(3)
    source.begin_again(0)

    assert source.on_live(3, payload(3), 0) == [Deliver(3, payload(3))]
    assert source.on_reply(2, 2, payload(2), 0) == [SourceCaughtUp(3)]
    assert source.on_reply(2, 3, payload(3), 0) == []
    assert source.on_live(4, payload(4), 0) == [Deliver(4, payload(4))]


def test_a_gap_seen_meanwhile_is_asked_about_afterwards() -> None:
    source = caught_up(3)
    source.begin_again(0)
    source.on_live(5, payload(5), 0)

    assert source.on_reply(2, END_OF_REPLAY, b"", 0) == [AskReplay(3, 2)]


def test_it_goes_on_behind_a_batch_that_the_publisher_has_unchanged() -> None:
    source = EventSource(OPTIONS, can_replay=True)
    source.start(0)

    assert source.resume(5, batch_digest(payload(5)), 0) == [AskReplay(2, 5)]
    assert source.on_live(8, payload(8), 0) == []
    assert source.on_reply(2, 5, payload(5), 0) == [Resumed(5)]
    assert delivered(source.on_reply(2, 6, payload(6), 0)) == [6]
    assert delivered(source.on_reply(2, 7, payload(7), 0)) == [7]
    assert source.on_reply(2, END_OF_REPLAY, b"", 0) == [Deliver(8, payload(8)), SourceCaughtUp(8)]


def test_it_stays_where_it_is_when_that_batch_is_gone_or_another() -> None:
    source = caught_up(9)

    for seq, digest in ((5, batch_digest(payload(5, "b"))), (4, batch_digest(payload(4)))):
        [asked] = source.resume(seq, digest, 0)
        assert isinstance(asked, AskReplay)
        [again] = source.on_reply(asked.round, 5, payload(5), 0)
        assert again == AskReplay(asked.round + 1, 8)
        assert source.on_reply(again.round, 8, payload(8), 0) == []
        assert source.on_reply(again.round, END_OF_REPLAY, b"", 0) == [SourceCaughtUp(8)]


def test_it_does_not_go_on_while_it_finds_out_whether_the_engine_is_the_same() -> None:
    source = caught_up(9)
    source.on_reconnect(0)
    assert source.resume(5, 1, 0) == []

    source = caught_up(9)
    source.begin_again(0)
    assert (source.resume(5, 1, 0), caught_up(can_replay=False).resume(5, 1, 0)) == ([], [])


def test_what_came_live_meanwhile_is_delivered_when_no_answer_comes() -> None:
    source = caught_up(9)
    source.resume(5, batch_digest(payload(5)), 0)
    source.on_live(9, payload(9), 0)

    assert source.on_time(2) == [AskReplay(3, 8)]

    assert delivered(source.on_time(4)) == [9]


def test_a_live_batch_that_is_the_next_ends_a_replay_that_nobody_answers() -> None:
    source = EventSource(OPTIONS, can_replay=True)
    source.start(0)

    assert source.on_live(0, payload(0), 0) == [Deliver(0, payload(0)), SourceCaughtUp(0)]
    assert (source.on_time(2), source.on_live(1, payload(1), 3)) == ([], [Deliver(1, payload(1))])


def test_a_hole_in_the_answer_is_asked_for_again_at_once() -> None:
    source = caught_up()
    source.on_live(9, payload(9), 0)
    source.on_reply(2, 0, payload(0), 0)

    assert source.on_reply(2, 4, payload(4), 0) == [AskReplay(3, 0)]
    assert source.on_reply(2, 5, payload(5), 0) == []


def test_after_a_reconnect_an_engine_with_fewer_batches_is_a_new_one() -> None:
    source = caught_up(3)
    source.on_reconnect(0)

    assert source.on_reply(2, END_OF_REPLAY, b"", 0) == [Restarted(), AskReplay(3, 0)]
