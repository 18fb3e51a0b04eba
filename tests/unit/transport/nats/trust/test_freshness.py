from kvmesh.transport.nats.trust.freshness import KEEP_MS, Freshness
from kvmesh.transport.nats.trust.seal import Seal

SUBJECT = "kvmesh.hb.chat.w0"


def seal(time_ms: int, counter: int = 1, key: str = "U1", session: str = "a") -> Seal:
    return Seal(key, session, time_ms, counter, b"")


def test_subjects_lives_and_keys_are_told_apart() -> None:
    fresh = Freshness()
    fresh.take(seal(1_000), SUBJECT, 1_000)

    assert fresh.is_new(seal(900), "kvmesh.hb.chat.w1")
    assert fresh.is_new(seal(900, session="b"), SUBJECT)
    assert fresh.is_new(seal(900, key="U2"), SUBJECT)


def test_who_is_silent_is_forgotten_when_its_messages_are_stale() -> None:
    fresh = Freshness()
    fresh.take(seal(1_000, session="old"), SUBJECT, 1_000)
    fresh.take(seal(2_000, session="b"), SUBJECT, 1_000 + KEEP_MS)
    assert len(fresh) == 2

    fresh.take(seal(3_000, session="b"), SUBJECT, 1_001 + KEEP_MS)

    assert len(fresh) == 1


def test_a_key_that_speaks_as_many_fills_no_more_than_its_table_and_opens_no_replay() -> None:
    fresh = Freshness(most_senders=8)
    other = seal(500, key="U2")
    fresh.take(other, SUBJECT, 500)
    sent = [(seal(1_000 + number), f"kvmesh.hb.chat.w{number}") for number in range(1_000)]

    for one, subject in sent:
        assert fresh.is_new(one, subject)
        fresh.take(one, subject, one.time_ms)

    assert len(fresh) == 9
    assert not any(fresh.is_new(one, subject) for one, subject in sent)
    assert not fresh.is_new(other, SUBJECT)


def test_the_floor_of_who_was_forgotten_does_not_fall() -> None:
    fresh = Freshness(most_senders=1)
    for number, time_ms in enumerate((1_000, 500, 600)):
        fresh.take(seal(time_ms), f"kvmesh.hb.chat.w{number}", 1_000)

    assert not fresh.is_new(seal(700), "kvmesh.hb.chat.w3")


def test_a_key_that_is_trusted_no_more_is_forgotten() -> None:
    fresh = Freshness()
    for key in ("U1", "U2"):
        fresh.take(seal(1_000, key=key), SUBJECT, 1_000)

    fresh.retain({"U2"}.__contains__)

    assert fresh.is_new(seal(1_000, key="U1"), SUBJECT)
    assert not fresh.is_new(seal(1_000, key="U2"), SUBJECT)
