from pathlib import Path

import nkeys
import pytest

from kvmesh.errors import ConfigError
from kvmesh.transport.nats.trust.nkey import raw_key, read_seed, user_key

SEED = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER)
KEY = bytes(nkeys.from_seed(bytearray(SEED)).public_key).decode()
CREDS = f"""-----BEGIN NATS USER JWT-----
eyJ0.x.y
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{SEED.decode()}
------END USER NKEY SEED------
"""


def test_keys_are_written_as_nkeys_does() -> None:
    seed = nkeys.from_seed(bytearray(SEED))

    raw = raw_key(KEY)

    assert user_key(raw) == KEY
    assert raw == bytes(seed._keys.verify_key)


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


@pytest.mark.parametrize("data", [b"", b"SUAxxx", b"\xff\x00", KEY.encode(), b"S" * 58])
def test_a_file_without_a_seed_is_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "w.nk"
    path.write_bytes(data)

    with pytest.raises(ConfigError, match=r"w\.nk: holds no nkey seed"):
        read_seed(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        read_seed(tmp_path / "absent")
