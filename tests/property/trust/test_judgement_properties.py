"""Judging against a naive model: a set of all that was ever taken."""

from hypothesis import given
from hypothesis import strategies as st

from kvmesh.errors import CodecError
from kvmesh.transport.nats.trust.claim import Claims
from kvmesh.transport.nats.trust.freshness import Freshness
from kvmesh.transport.nats.trust.judgement import Message, judge
from kvmesh.transport.nats.trust.seal import STALE_MS, Sealer, find_seal, parse_seal
from tests.unit.transport.nats.trust.keys import ANCHORS, KEYS, SECRETS

START_MS = 1_700_000_000_000
CLAIMS = Claims("kvmesh")
SUBJECTS = ("kvmesh.hb.chat.w0", "kvmesh.hb.code.w0", "kvmesh.hb.code.w1", "kvmesh.ctl.chat.w0")


@given(st.data())
def test_every_message_is_taken_at_most_once_and_each_good_one_in_order_is(
    data: st.DataObject,
) -> None:
    lives = [(who, Sealer(SECRETS[who], session)) for who in SECRETS for session in ("a", "b")]
    taken, model = Freshness(most_senders=3), set[tuple[str, str, bytes]]()
    recorded: list[tuple[int, Message]] = []
    now_ms = START_MS
    for number in range(data.draw(st.integers(1, 25))):
        now_ms += data.draw(st.integers(0, STALE_MS))
        replayed: bool = data.draw(st.booleans())
        if recorded and replayed:
            signed_ms, message = recorded[data.draw(st.integers(0, len(recorded) - 1))]
        else:
            who, sealer = data.draw(st.sampled_from(lives))
            subject, payload = data.draw(st.sampled_from(SUBJECTS)), b"%d" % number
            claim = CLAIMS.read(subject)
            assert claim is not None
            signed_ms = now_ms
            message = Message(claim, subject, sealer.seal(subject, payload, now_ms), payload)
            recorded.append((signed_ms, message))
            allowed = ANCHORS.find_signer(KEYS[who], claim) is not None
            assert allowed or judge(message, ANCHORS, now_ms, taken) is not None

        refusal = judge(message, ANCHORS, now_ms, taken)

        which = (message.subject, message.seal, message.payload)
        if refusal is None:
            assert which not in model, "taken twice"
            assert now_ms - signed_ms <= STALE_MS
            model.add(which)
        assert len(taken) <= 3 * len(SECRETS)


@given(st.lists(st.tuples(st.sampled_from(["w0", "r0"]), st.integers(0, 2_000)), max_size=30))
def test_honest_senders_are_always_taken(steps: list[tuple[str, int]]) -> None:
    subjects = {"w0": "kvmesh.hb.chat.w0", "r0": "kvmesh.rt.chat.r0"}
    sealers = {who: Sealer(SECRETS[who], "a") for who in subjects}
    taken, now_ms = Freshness(), START_MS
    for who, pause_ms in steps:
        now_ms += pause_ms
        claim = CLAIMS.read(subjects[who])
        assert claim is not None
        seal = sealers[who].seal(subjects[who], b"x", now_ms)

        assert judge(Message(claim, subjects[who], seal, b"x"), ANCHORS, now_ms, taken) is None


@given(st.binary(max_size=600))
def test_any_header_is_a_seal_or_a_codec_error(block: bytes) -> None:
    text = find_seal(b"NATS/1.0\r\nKvmesh-Signature:" + block)

    try:
        seal = parse_seal(text)
    except CodecError:
        return
    assert seal.moment >= (0, 0)


@given(st.text(max_size=80))
def test_any_subject_has_one_claim_or_none(text: str) -> None:
    for subject in (text, f"kvmesh.{text}", f"$KV.kvmesh_meta.{text}", f"kvmesh.hb.{text}"):
        claim = CLAIMS.read(subject)
        assert claim is None or ANCHORS.find_signer(KEYS["stranger"], claim) is None
