"""Files that hold one secret: of hashes, of the next hop, of the admin paths."""

from pathlib import Path
from typing import Final

from kvmesh.errors import ConfigError

SHORTEST_HASH_SECRET: Final = 16


def read_secret(path: Path | None, setting: str) -> bytes:
    """Return the file's content without the white space around it; b"" for no file.

    Raises `ConfigError` that names `setting` when it cannot be read or is empty.
    """
    if path is None:
        return b""
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{setting} {path}: {error.strerror}") from error
    if not secret:
        raise ConfigError(f"{setting} {path}: the file is empty; write the secret into it")
    return secret


def read_hash_secret(path: Path | None) -> bytes:
    """Return the secret that keys the block hashes of one mesh; b"" for no file.

    Raises `ConfigError` when it cannot be read or is shorter than 16 bytes.
    """
    secret = read_secret(path, "--hash-secret-file")
    if path is not None and len(secret) < SHORTEST_HASH_SECRET:
        raise ConfigError(
            f"--hash-secret-file {path} holds {len(secret)} bytes, fewer than"
            f" {SHORTEST_HASH_SECRET}; make one with: openssl rand -hex 32 > {path}"
        )
    return secret


def read_credential(path: Path | None, setting: str) -> bytes:
    """Return the authorization header's value made of the key in a file; b"" for no file.

    Raises `ConfigError`.
    """
    key = read_secret(path, setting)
    if any(byte <= ord(" ") for byte in key):
        raise ConfigError(f"{setting} {path}: write one key into it, and nothing else")
    return b"Bearer " + key if key else b""
