"""Certificate chains and private keys of settings, with what is missing named."""

import ssl
from pathlib import Path
from typing import Final

from kvmesh.errors import ConfigError

Named = tuple[str, Path | None]
"""A setting and the file it names."""

SAME_FILE: Final[Named] = ("", None)

_KEY: Final = b"PRIVATE KEY-----"


def load_certificate(context: ssl.SSLContext, cert: Named, key: Named = SAME_FILE) -> None:
    """Load the PEM chain of `cert` and the private key of `key`, or of the same file without one.

    Raises `ConfigError` naming the file that cannot be used, and the setting that is missing.
    """
    (cert_flag, cert_path), (key_flag, key_path) = cert, key
    assert cert_path is not None
    for flag, path in (cert, key):
        if path is not None:
            _read(flag, path)
    if key_path is None and _KEY not in _read(cert_flag, cert_path):
        remedy = f"name its file with {key_flag} FILE" if key_flag else "put it behind the chain"
        raise ConfigError(f"{cert_flag} {cert_path} holds no private key: {remedy}")
    try:
        context.load_cert_chain(cert_path, key_path)
    except (OSError, ssl.SSLError) as error:
        second = f", {key_flag} {key_path}" if key_path is not None else ""
        raise ConfigError(
            f"{cert_flag} {cert_path}{second}: {error}; give a PEM chain and the key it was made of"
        ) from error


def _read(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror}") from error
