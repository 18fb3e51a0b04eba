from pathlib import Path

import msgspec
import pytest

from kvmesh.errors import ConfigError
from kvmesh.transport.nats.trust import anchors as module
from kvmesh.transport.nats.trust.anchors import (
    Anchor,
    Anchors,
    decode_anchors,
    encode_anchors,
    read_anchors,
)
from kvmesh.transport.nats.trust.claim import Claim
from tests.unit.transport.nats.trust.keys import ANCHORS, KEYS, MEMBERS

MAY = {
    Claim("worker heartbeat", "chat", "w0"): {"w0"},
    Claim("worker heartbeat", "chat", "many-dp2"): {"many"},
    Claim("worker heartbeat", "chat", "many-dp3"): set(),
    Claim("worker heartbeat", "chat", "many"): set(),
    Claim("worker heartbeat", "code", "whoever"): {"any"},
    Claim("worker heartbeat", "code", "r0"): {"any"},
    Claim("router heartbeat", "chat", "r0"): {"r0"},
    Claim("router heartbeat", "chat", "w0"): set(),
    Claim("command", "chat"): {"r0"},
    Claim("lease", "chat"): {"r0"},
    Claim("manifest", "code"): {"r-other"},
    Claim("command", "*"): set(),
    Claim("worker heartbeat", "chat", "*"): set(),
}


@pytest.mark.parametrize("claim", MAY, ids=str)
def test_only_who_is_named_for_it_may_claim(claim: Claim) -> None:
    allowed = {name for name, key in KEYS.items() if ANCHORS.find_signer(key, claim) is not None}

    assert allowed == MAY[claim]


def test_a_member_may_have_two_keys_while_it_changes_and_a_key_two_members() -> None:
    both = Anchors(
        (
            Anchor("worker", KEYS["w0"], "chat", "w0"),
            Anchor("worker", KEYS["w1"], "chat", "w0"),
            Anchor("worker", KEYS["w1"], "chat", "w1"),
        )
    )

    claims = [Claim("worker heartbeat", "chat", name) for name in ("w0", "w1")]

    assert [[both.find_signer(KEYS[k], c) is not None for c in claims] for k in ("w0", "w1")] == [
        [True, False],
        [True, True],
    ]
    assert len(both) == 2
    assert both.describe(KEYS["w1"]) == "worker chat/w0"


def test_keys_are_described_by_whose_they_are() -> None:
    assert ANCHORS.describe(KEYS["meta"]) == "meta-router"
    assert ANCHORS.describe(KEYS["stranger"]) == ""
    assert KEYS["stranger"] not in ANCHORS


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trust.json"
    path.write_bytes(encode_anchors(MEMBERS))

    read = read_anchors(path)

    assert len(read) == len(ANCHORS)
    assert read.describe(KEYS["many"]) == "worker chat/many-dp0"


def file(*members: dict[str, object], schema: int = 1) -> bytes:
    return msgspec.json.encode({"schema": schema, "members": members})


BAD = {
    "no JSON": (b"{", "as kvmesh nats-accounts writes it"),
    "bad UTF-8": (b'{"schema":1,"members":["\xff"]}', "as kvmesh nats-accounts writes it"),
    "too deep": (b"[" * 100_000, "as kvmesh nats-accounts writes it"),
    "a list": (b"[]", "as kvmesh nats-accounts writes it"),
    "another role": (file({"role": "king", "key": KEYS["w0"]}), "king"),
    "of a newer version": (file(schema=2), "schema 2, this build reads 1"),
    "empty": (file(), "names no members"),
    "a seed": (file({"role": "admin", "key": "SU" + "A" * 56}), r"member 0 \(admin /\).*no public"),
    "no bucket": (file({"role": "worker", "key": KEYS["w0"]}), "needs a bucket and a name"),
    "no name": (file({"role": "router", "key": KEYS["r0"], "bucket": "b"}), "and a name"),
    "many ranks": (
        file({"role": "worker", "key": KEYS["w0"], "bucket": "b", "name": "n", "ranks": 10**6}),
        "ranks 1000000: use 1 to 9999",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_is_named_with_what_is_wrong(what: str) -> None:
    data, reason = BAD[what]

    with pytest.raises(ConfigError, match=f"trust.json: .*{reason}"):
        decode_anchors(data, "trust.json")


def test_a_file_that_cannot_be_read_or_is_too_long_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_anchors(tmp_path / "absent")
    monkeypatch.setattr(module, "MAX_BYTES", 3)
    path = tmp_path / "trust.json"
    path.write_bytes(b"long")
    with pytest.raises(ConfigError, match="longer than 3 bytes"):
        read_anchors(path)
