from kvmesh.transport.nats.trust.claim import Claims
from kvmesh.transport.nats.trust.judgement import Message, judge
from kvmesh.transport.nats.trust.seal import HEADER
from kvmesh.transport.nats.trust.signer import Signer
from tests.unit.transport.nats.trust.keys import ANCHORS, KEYS, SECRETS

HEART = "kvmesh.hb.chat.w0"


def test_what_is_to_be_signed_gets_a_header_more() -> None:
    signer = Signer("kvmesh", SECRETS["w0"], wall_ns=lambda: 5_000_000_000)

    headers = signer.sign(HEART, b"x", {"Nats-TTL": "3s"})

    claim = Claims("kvmesh").read(HEART)
    assert headers is not None
    assert claim is not None
    assert headers["Nats-TTL"] == "3s"
    assert judge(Message(claim, HEART, headers[HEADER], b"x"), ANCHORS, 5_000) is None
    assert signer.key == KEYS["w0"]
    assert HEADER in (signer.sign(HEART, b"x", None) or {})


def test_events_and_other_namespaces_are_left_alone() -> None:
    signer = Signer("kvmesh", SECRETS["w0"])
    given = {"a": "b"}

    assert signer.sign("kvmesh.ev.chat.w0", b"x", None) is None
    assert signer.sign("other.hb.chat.w0", b"x", given) is given
