from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from kvmesh.errors import ConfigError
from kvmesh.settings.secret_file import read_credential, read_hash_secret, read_secret


def test_a_secret_is_the_files_content_without_its_newline(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b" 0123456789abcdef\n")

    assert read_hash_secret(path) == b"0123456789abcdef"
    assert read_hash_secret(None) == b""


def test_a_credential_is_a_bearer_of_one_word(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"sk-1\n")

    assert read_credential(path, "--upstream-key-file") == b"Bearer sk-1"
    assert read_credential(None, "--upstream-key-file") == b""
    path.write_bytes(b"sk-1 sk-2\n")
    with pytest.raises(ConfigError, match=r"--upstream-key-file .*key: write one key"):
        read_credential(path, "--upstream-key-file")


@pytest.mark.parametrize(
    ("content", "read", "words"),
    [
        (b"0123456789abcde\n", read_hash_secret, "15 bytes, fewer than 16; make one with: openssl"),
        (None, read_hash_secret, r"--hash-secret-file .*secret: No such file"),
        (b" \n", partial(read_secret, setting="--a-file"), r"--a-file .*secret: the file is empty"),
    ],
)
def test_what_is_no_secret_is_refused_with_the_reason(
    tmp_path: Path, content: bytes | None, read: Callable[[Path], object], words: str
) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError, match=words):
        read(path)
