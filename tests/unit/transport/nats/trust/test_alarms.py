from structlog.testing import capture_logs

from kvmesh.observe import get_logger
from kvmesh.transport.nats.trust.alarms import LAPSE_S, MOST_SKEWS, QUIET_S, Alarms
from kvmesh.transport.nats.trust.claim import KINDS, Claim
from kvmesh.transport.nats.trust.judgement import REASONS, Message, Refusal

UNSIGNED = Refusal("unsigned", "it has no signature")


def of(member: str) -> Message:
    claim = Claim("worker heartbeat", "chat", member)
    return Message(claim, f"kvmesh.hb.chat.{member}", "", b"")


def test_counts_are_there_before_anything_was_refused() -> None:
    counts = Alarms(get_logger()).counts()

    assert counts == {(reason, kind): 0 for reason in REASONS for kind in KINDS}


def test_a_flood_of_one_kind_is_counted_and_logged_now_and_then() -> None:
    alarms = Alarms(get_logger())

    with capture_logs() as logs:
        for number in range(1_000):
            alarms.note(of(f"w{number}"), UNSIGNED, number * 2 * QUIET_S / 1_000)

    assert alarms.counts()["unsigned", "worker heartbeat"] == 1_000
    assert len(logs) == 2
    assert logs[0]["subject"] == "kvmesh.hb.chat.w0"
    assert alarms.warnings(20.0) == (
        "signature refused: worker heartbeat on kvmesh.hb.chat.w999, key none: it has no signature",
    )
    assert alarms.warnings(20.0 + LAPSE_S) == ()


def test_each_wrong_clock_is_logged_at_once_and_shown_while_it_lasts() -> None:
    alarms = Alarms(get_logger())
    names = [f"w{number}" for number in range(MOST_SKEWS + 10)]

    with capture_logs() as logs:
        for name in (*names, *names):
            alarms.note(of(name), Refusal("stale", "late", "U", -600_000), 1.0)

    skews = alarms.skews_s(1.0)
    assert skews == {f"chat/{name}": -600.0 for name in names[:MOST_SKEWS]}
    assert len(logs) == MOST_SKEWS
    assert (
        "the clock of chat/w0 is 600 s behind: what it says is refused; set it (NTP)"
        in alarms.warnings(1.0)
    )
    assert not alarms.skews_s(1.1 + LAPSE_S)


def test_a_clock_that_is_right_again_is_shown_no_more() -> None:
    alarms = Alarms(get_logger())
    alarms.note(of("w0"), Refusal("stale", "late", "U", -600_000), 1.0)

    alarms.note_good(of("w1"))
    assert alarms.skews_s(1.0) == {"chat/w0": -600.0}

    alarms.note_good(of("w0"))
    assert alarms.skews_s(1.0) == {}
    alarms.note_good(of("w0"))


def test_a_wrong_clock_of_who_is_no_member_of_a_subject_is_shown_by_its_key() -> None:
    alarms = Alarms(get_logger())
    command = Message(Claim("command", "chat"), "kvmesh.ctl.chat.w0", "", b"")

    alarms.note(command, Refusal("stale", "late", "UKEY", 90_000), 1.0)

    assert alarms.skews_s(1.0) == {"UKEY": 90.0}
    assert "the clock of UKEY is 90 s ahead" in alarms.warnings(1.0)[1]
