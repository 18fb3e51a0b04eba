from pathlib import Path

import pytest

from kvmesh.app.hash_secret import read_hash_secret
from kvmesh.errors import ConfigError


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
