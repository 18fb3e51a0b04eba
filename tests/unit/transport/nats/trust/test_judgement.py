import pytest

from kvmesh.transport.nats.trust.claim import Claim, Claims
from kvmesh.transport.nats.trust.freshness import Freshness
from kvmesh.transport.nats.trust.judgement import Message, Refusal, judge
from kvmesh.transport.nats.trust.seal import STALE_MS, Sealer
from tests.unit.transport.nats.trust.keys import ANCHORS, SECRETS

NOW_MS = 1_700_000_000_000
HEART = "kvmesh.hb.chat.w0"
LEASE = "$KV.kvmesh_meta.lease.snap.chat"
COMMAND = "kvmesh.ctl.chat.w0"
CLAIMS = Claims("kvmesh")


def message(who: str, subject: str = HEART, at_ms: int = NOW_MS, payload: bytes = b"x") -> Message:
    claim = CLAIMS.read(subject)
    assert claim is not None
    return Message(claim, subject, Sealer(SECRETS[who], "s").seal(subject, payload, at_ms), payload)


def reason(refusal: Refusal | None) -> str:
    return "" if refusal is None else refusal.reason


def test_a_stored_value_may_be_read_again_and_again() -> None:
    stored = message("r0", "$KV.kvmesh_meta.manifest.chat")

    assert [judge(stored, ANCHORS, NOW_MS) for _ in range(3)] == [None] * 3


@pytest.mark.parametrize("who", ["w1", "r0", "meta", "stranger", "any"])
def test_another_members_heartbeat_is_foreign(who: str) -> None:
    refusal = judge(message(who), ANCHORS, NOW_MS)

    assert reason(refusal) == "foreign"


def test_no_signature_is_unsigned_and_garbage_is_forged() -> None:
    claim = Claim("worker heartbeat", "chat", "w0")

    assert reason(judge(Message(claim, HEART, "", b""), ANCHORS, NOW_MS)) == "unsigned"
    assert reason(judge(Message(claim, HEART, "x", b""), ANCHORS, NOW_MS)) == "forged"


def test_a_changed_payload_is_forged_and_not_remembered() -> None:
    taken, good = Freshness(), message("w0")
    bad = Message(good.claim, good.subject, good.seal, b"other")

    assert reason(judge(bad, ANCHORS, NOW_MS, taken)) == "forged"
    assert judge(good, ANCHORS, NOW_MS, taken) is None


@pytest.mark.parametrize(("off_ms", "word"), [(-STALE_MS - 1, "behind"), (STALE_MS + 1, "ahead")])
def test_a_wrong_clock_is_told_by_name_and_seconds(off_ms: int, word: str) -> None:
    refusals = [
        judge(message(who, subject, NOW_MS + off_ms), ANCHORS, NOW_MS)
        for who, subject in (("w0", HEART), ("r0", COMMAND), ("r0", LEASE))
    ]

    assert [one and one.skew_ms for one in refusals] == [off_ms] * 3
    texts = [one.text for one in refusals if one is not None]
    assert texts[0].startswith(f"the clock of chat/w0 is 30 s {word}")
    assert texts[1].startswith(f"the clock of router chat/r0 is 30 s {word}")
    assert texts[2].startswith(f"the clock of router chat/r0 or of the NATS server is 30 s {word}")


def test_a_command_signed_before_this_process_listened_is_a_recording() -> None:
    early, heart = message("r0", COMMAND, NOW_MS - 1), message("w0", at_ms=NOW_MS - 1)

    assert reason(judge(early, ANCHORS, NOW_MS, Freshness(), NOW_MS)) == "stale"
    assert judge(heart, ANCHORS, NOW_MS, Freshness(), NOW_MS) is None
    assert judge(message("r0", COMMAND), ANCHORS, NOW_MS, Freshness(), NOW_MS) is None
