import pytest
from nacl.signing import SigningKey

from kvmesh.errors import CodecError
from kvmesh.transport.nats.trust.nkey import raw_key
from kvmesh.transport.nats.trust.seal import (
    HEADER,
    STALE_MS,
    Sealer,
    find_seal,
    is_genuine,
    parse_seal,
)

SEED = SigningKey(bytes(range(32)))
SUBJECT = "kvmesh.hb.chat.w0"


def test_a_seal_is_genuine_for_its_subject_and_payload_only() -> None:
    sealer = Sealer(SEED, "a1")

    seal = parse_seal(sealer.seal(SUBJECT, b"alive", 1_000))

    public = raw_key(seal.key)
    assert is_genuine(seal, public, SUBJECT, b"alive")
    assert not is_genuine(seal, public, SUBJECT, b"alive!")
    assert not is_genuine(seal, public, "kvmesh.hb.chat.w1", b"alive")
    assert not is_genuine(seal, b"\x00" * 32, SUBJECT, b"alive")
    assert not is_genuine(seal, b"", SUBJECT, b"alive")


def test_moments_grow_although_the_clock_is_set_back_a_little() -> None:
    sealer = Sealer(SEED, "a1")
    times = (1_000_000, 1_000_000, 1_000_000 - STALE_MS, 1_000_001)

    moments = [parse_seal(sealer.seal(SUBJECT, b"", at)).moment for at in times]

    assert moments == sorted(set(moments))


def test_a_clock_that_was_far_ahead_is_followed_back() -> None:
    sealer = Sealer(SEED, "a1")
    sealer.seal(SUBJECT, b"", 10_000_000)

    seal = parse_seal(sealer.seal(SUBJECT, b"", 10_000_000 - STALE_MS - 1))

    assert seal.time_ms == 10_000_000 - STALE_MS - 1


def test_the_header_is_found_among_others() -> None:
    block = f"NATS/1.0\r\nNats-TTL: 3s\r\n{HEADER}: one two\r\nOther: x\r\n\r\n".encode()

    assert find_seal(block) == "one two"
    assert find_seal(f"NATS/1.0\r\n{HEADER}: cut".encode()) == "cut"
    assert find_seal(b"NATS/1.0\r\nNats-TTL: 3s\r\n\r\n") == ""
    assert find_seal(None) == find_seal(b"") == ""


GOOD = Sealer(SEED, "a1").seal(SUBJECT, b"", 1_000)
KEY, SESSION, TIME, COUNTER, SIGNATURE = GOOD.split(" ")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        f"{GOOD} more",
        f"{KEY} {SESSION} -1 {COUNTER} {SIGNATURE}",
        f"{KEY} {SESSION} 1e3 {COUNTER} {SIGNATURE}",
        f"{KEY} {SESSION} ² {COUNTER} {SIGNATURE}",
        f"{KEY} {SESSION} {2**62 + 1} {COUNTER} {SIGNATURE}",
        f"{KEY} {SESSION} {'9' * 400} {COUNTER} {SIGNATURE}",
        f"{KEY} {SESSION} {TIME} {COUNTER} ????",
        f"{KEY} {SESSION} {TIME} {COUNTER} {SIGNATURE[:40]}",
        f"{KEY} {SESSION * 9} {TIME} {COUNTER} {SIGNATURE}",
        f"{KEY}{KEY} {SESSION} {TIME} {COUNTER} {SIGNATURE}",
        f"{KEY} {SESSION} {TIME} {COUNTER} {SIGNATURE * 9}",
    ],
)
def test_what_is_no_seal_is_a_codec_error(text: str) -> None:
    with pytest.raises(CodecError, match=HEADER) as caught:
        parse_seal(text)

    assert len(str(caught.value)) < 400
