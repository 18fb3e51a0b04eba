from pathlib import Path

import pytest

from kvmesh.errors import ConfigError
from kvmesh.settings.secret_file import read_credential, read_hash_secret, read_secret


def test_a_secret_is_the_files_content_without_its_newline(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b" 0123456789abcdef\n")

    assert read_hash_secret(path) == b"0123456789abcdef"
    assert read_hash_secret(None) == b""


def test_a_short_secret_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"0123456789abcde\n")

    with pytest.raises(ConfigError, match="holds 15 bytes, fewer than 16; make one with: openssl"):
        read_hash_secret(path)


def test_a_missing_secret_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--hash-secret-file .*absent: No such file"):
        read_hash_secret(tmp_path / "absent")


def test_a_credential_is_a_bearer_of_one_word(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"sk-1\n")

    assert read_credential(path, "--upstream-key-file") == b"Bearer sk-1"
    assert read_credential(None, "--upstream-key-file") == b""
    path.write_bytes(b"sk-1 sk-2\n")
    with pytest.raises(ConfigError, match=r"--upstream-key-file .*key: write one key"):
        read_credential(path, "--upstream-key-file")


def test_an_empty_file_is_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b" \n")

    with pytest.raises(ConfigError, match=r"--admin-token-file .*token: the file is empty"):
        read_secret(path, "--admin-token-file")
