"""The secret that keys the block hashes of one mesh."""

from pathlib import Path
from typing import Final

from kvmesh.errors import ConfigError

SHORTEST: Final = 16


def read_hash_secret(path: Path | None) -> bytes:
    """Return the bytes of the file without surrounding white space, b"" for no file.

    Raises `ConfigError` when it cannot be read or is shorter than 16 bytes.
    """
    if path is None:
        return b""
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"--hash-secret-file {path}: {error.strerror}") from error
    if len(secret) < SHORTEST:
        raise ConfigError(
            f"--hash-secret-file {path} holds {len(secret)} bytes, fewer than {SHORTEST};"
            f" make one with: openssl rand -hex 32 > {path}"
        )
    return secret
