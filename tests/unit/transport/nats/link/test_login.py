"""How a process logs in by a file of credentials or of a seed."""

from base64 import b64decode
from pathlib import Path

import nats.errors
import pytest
from nacl.signing import VerifyKey

from kvmesh.transport.nats.link.login import login_arguments
from kvmesh.transport.nats.trust.nkey import USER, KeyPair, encode_seed, raw_key

SEED = encode_seed(USER, bytes(range(32)))
CREDS = b"""-----BEGIN NATS USER JWT-----
eyJ0.x.%d
------END NATS USER JWT------
-----BEGIN USER NKEY SEED-----
%s
------END USER NKEY SEED------
"""


def test_a_seed_logs_in_by_its_nkey(tmp_path: Path) -> None:
    (tmp_path / "w.nk").write_bytes(SEED)

    found = login_arguments(tmp_path / "w.nk", None)

    assert set(found) == {"nkey", "signature_cb"}
    signature = b64decode(found["signature_cb"]("nonce"))
    assert found["nkey"] == KeyPair(SEED).public_key
    VerifyKey(raw_key(found["nkey"])).verify(b"nonce", signature)


def test_credentials_log_in_by_their_token_read_anew_each_time(tmp_path: Path) -> None:
    creds = tmp_path / "w.creds"
    creds.write_bytes(CREDS % (1, SEED))
    found = login_arguments(creds, None)

    creds.write_bytes(CREDS % (2, SEED))

    assert set(found) == {"user_jwt_cb", "signature_cb"}
    assert found["user_jwt_cb"]() == b"eyJ0.x.2"


def test_a_file_that_is_gone_fails_one_attempt_and_not_the_client(tmp_path: Path) -> None:
    creds = tmp_path / "w.creds"
    creds.write_bytes(CREDS % (1, SEED))
    found = login_arguments(creds, None)
    creds.unlink()

    with pytest.raises(nats.errors.Error, match=r"w\.creds"):
        found["user_jwt_cb"]()
    with pytest.raises(nats.errors.Error, match=r"w\.creds"):
        found["signature_cb"]("nonce")
