"""nkeys: a user's public key in its text form, and the secret one that a process logs in with."""

import re
from base64 import b32decode, b32encode
from binascii import crc_hqx
from pathlib import Path
from typing import Final

import nkeys
from nacl.signing import SigningKey

from kvmesh.errors import ConfigError

USER: Final = bytes((nkeys.PREFIX_BYTE_USER,))
KEY_BYTES: Final = 32
_TEXT: Final = re.compile(r"U[A-Z2-7]{55}")
_IN_CREDS: Final = re.compile(rb"BEGIN USER NKEY SEED-+\s*(S[A-Z2-7]+)\s*-+END")


def user_key(raw: bytes) -> str:
    """Return the text, U and 55 letters, of the 32 raw bytes of a user's public key."""
    text = USER + raw
    return b32encode(text + _checksum(text)).decode()


def raw_key(text: str) -> bytes:
    """Return the 32 raw bytes of a user's public key. Raises `ValueError` for another text."""
    if _TEXT.fullmatch(text) is None:
        raise ValueError(f"{text[:60]!r} is no public nkey of a user: U and 55 letters")
    data = b32decode(text)
    if data[-2:] != _checksum(data[:-2]) or data[:1] != USER:
        raise ValueError(f"{text!r} is no public nkey: its checksum is wrong")
    return data[1:-2]


def seed_in_creds(data: bytes) -> bytes | None:
    """Return the text of the seed in credentials; None: they are none, it is a seed alone."""
    found = _IN_CREDS.search(data)
    return found[1] if found else None


def read_seed(path: Path | None) -> SigningKey | None:
    """Return the secret key in a file of credentials, or of a seed alone; None without a file.

    Raises `ConfigError` naming the file for one that holds no seed.
    """
    if path is None:
        return None
    try:
        data = path.read_bytes()
        _, raw = nkeys.decode_seed(bytes((seed_in_creds(data) or data).strip()))
        return SigningKey(bytes(raw))
    except (OSError, nkeys.NkeysError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: holds no nkey seed of a user: {error!r}") from error


def _checksum(data: bytes) -> bytes:
    return crc_hqx(data, 0).to_bytes(2, "little")
