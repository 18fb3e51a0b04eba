"""nkeys: Ed25519 keys in NATS's text form, and the secret one that a process logs in with.

The package nkeys is published as source alone; what is needed of the form is below.
Source: github.com/nats-io/nkeys.
"""

import re
from base64 import b32decode, b32encode
from binascii import crc_hqx
from pathlib import Path
from typing import Final

from nacl.signing import SigningKey

from kvmesh.errors import ConfigError

OPERATOR: Final = 14 << 3
ACCOUNT: Final = 0
USER: Final = 20 << 3
KEY_BYTES: Final = 32
_SEED: Final = 18 << 3
_SEED_BYTES: Final = 2 + KEY_BYTES + 2
_TEXT: Final = re.compile(r"U[A-Z2-7]{55}")
_SEED_TITLE: Final = b"BEGIN USER NKEY SEED"
_TOKEN_TITLE: Final = b"BEGIN NATS USER JWT"


class KeyPair:
    """A secret key and its kind; `public_key` is the text of its public half.

    Raises `ValueError` for a text that is no seed.
    """

    def __init__(self, seed: bytes) -> None:
        self.kind, raw = decode_seed(seed)
        self._key = SigningKey(raw)
        self.public_key = _text(bytes((self.kind,)) + bytes(self._key.verify_key))

    def sign(self, data: bytes) -> bytes:
        """Return the 64 bytes of its signature."""
        return self._key.sign(data).signature


def encode_seed(kind: int, raw: bytes) -> bytes:
    """Return the text, S and 57 letters, of a secret key of 32 raw bytes."""
    return _text(bytes((_SEED | kind >> 5, (kind & 31) << 3)) + raw).encode()


def decode_seed(text: bytes) -> tuple[int, bytes]:
    """Return kind and raw bytes of a secret key. Raises `ValueError` for another text."""
    data = b32decode(text + b"=" * (-len(text) % 8))
    if len(data) != _SEED_BYTES or data[0] & 0xF8 != _SEED:
        raise ValueError("no seed: S and 57 letters")
    if data[-2:] != _checksum(data[:-2]):
        raise ValueError("no seed: its checksum is wrong")
    return (data[0] & 7) << 5 | data[1] >> 3, data[2:-2]


def user_key(raw: bytes) -> str:
    """Return the text, U and 55 letters, of the 32 raw bytes of a user's public key."""
    return _text(bytes((USER,)) + raw)


def raw_key(text: str) -> bytes:
    """Return the 32 raw bytes of a user's public key. Raises `ValueError` for another text."""
    if _TEXT.fullmatch(text) is None:
        raise ValueError(f"{text[:60]!r} is no public nkey of a user: U and 55 letters")
    data = b32decode(text)
    if data[-2:] != _checksum(data[:-2]) or data[0] != USER:
        raise ValueError(f"{text!r} is no public nkey: its checksum is wrong")
    return data[1:-2]


def token_in_creds(data: bytes) -> bytes | None:
    """Return the token in credentials; None: there is none, an nkey alone logs in."""
    return _in_creds(data, _TOKEN_TITLE)


def read_seed(path: Path | None) -> SigningKey | None:
    """Return the secret key in a file of credentials, or of a seed alone; None without a file.

    Raises `ConfigError` naming the file for one that holds no seed of a user.
    """
    if path is None:
        return None
    try:
        data = path.read_bytes()
        kind, raw = decode_seed(_in_creds(data, _SEED_TITLE) or data.strip())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: holds no nkey seed of a user: {error}") from error
    if kind != USER:
        raise ConfigError(f"{path}: holds no nkey seed of a user, but one of another kind")
    return SigningKey(raw)


def _in_creds(data: bytes, title: bytes) -> bytes | None:
    """Return what stands on the line below a title, None without one."""
    lines = iter(data.split(b"\n"))
    if not any(title in line for line in lines):
        return None
    return next((word for line in lines if (word := line.strip())), None)


def _text(data: bytes) -> str:
    return b32encode(data + _checksum(data)).decode().rstrip("=")


def _checksum(data: bytes) -> bytes:
    return crc_hqx(data, 0).to_bytes(2, "little")
