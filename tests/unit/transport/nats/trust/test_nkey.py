from pathlib import Path

import pytest
from nacl.signing import VerifyKey

from kvmesh.errors import ConfigError
from kvmesh.transport.nats.trust.nkey import (
    ACCOUNT,
    OPERATOR,
    USER,
    KeyPair,
    decode_seed,
    encode_seed,
    raw_key,
    read_seed,
    token_in_creds,
    user_key,
)

RAW = bytes(range(32))
TEXTS = {
    OPERATOR: (
        "SOAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H2AJA",
        "OAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3QZVT",
    ),
    ACCOUNT: (
        "SAAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4HYMHI",
        "AAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3QPZV",
    ),
    USER: (
        "SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776Y",
        "UAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3RLKK",
    ),
}
"""Seed and public key of `RAW` as the package nkeys 0.2.1 writes them."""
SEED, KEY = TEXTS[USER][0].encode(), TEXTS[USER][1]
NO_SEEDS = [b"", b"SUAxxx", b"\xff\x00", KEY.encode(), b"S" * 58, SEED[:-1] + b"A"]
NO_SEEDS.append(TEXTS[OPERATOR][0].encode())
CREDS = f"""-----BEGIN NATS USER JWT-----
eyJ0.x.y
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{SEED.decode()}
------END USER NKEY SEED------
"""


@pytest.mark.parametrize("kind", TEXTS)
def test_keys_are_written_as_nkeys_does(kind: int) -> None:
    seed, public = TEXTS[kind]

    keys = KeyPair(seed.encode())

    assert (keys.kind, keys.public_key) == (kind, public)
    assert encode_seed(kind, RAW) == seed.encode()
    assert decode_seed(seed.encode()) == (kind, RAW)
    assert len(keys.sign(b"a")) == 64


def test_what_a_user_signs_is_verified_by_the_raw_bytes_of_its_public_key() -> None:
    raw = raw_key(KEY)

    assert user_key(raw) == KEY
    assert VerifyKey(raw).verify(b"nonce", KeyPair(SEED).sign(b"nonce")) == b"nonce"


def test_credentials_have_a_token_and_a_seed_alone_has_none() -> None:
    assert token_in_creds(CREDS.encode()) == b"eyJ0.x.y"
    assert token_in_creds(SEED) is None


@pytest.mark.parametrize(
    "text", ["", "U", KEY.lower(), f"{KEY}A", f"A{KEY[1:]}", f"{KEY[:-1]}7", "U" + "A" * 55]
)
def test_what_is_no_public_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no public nkey"):
        raw_key(text)


def test_a_seed_is_read_from_its_file_or_from_credentials(tmp_path: Path) -> None:
    seed, creds = tmp_path / "w.nk", tmp_path / "w.creds"
    seed.write_bytes(SEED + b"\n")
    creds.write_text(CREDS)

    found = [read_seed(seed), read_seed(creds)]

    assert {one and user_key(bytes(one.verify_key)) for one in found} == {KEY}
    assert read_seed(None) is None


@pytest.mark.parametrize("data", NO_SEEDS)
def test_a_file_without_a_seed_is_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "w.nk"
    path.write_bytes(data)

    with pytest.raises(ConfigError, match=r"w\.nk: holds no nkey seed"):
        read_seed(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        read_seed(tmp_path / "absent")
