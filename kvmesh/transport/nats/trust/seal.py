"""A seal: the signature that goes with a message as a NATS header, and what it is made over."""

import hashlib
from base64 import b64encode
from binascii import a2b_base64
from typing import Final

import msgspec
from nacl.bindings import crypto_sign, crypto_sign_open
from nacl.exceptions import CryptoError
from nacl.signing import SigningKey

from kvmesh.bounds import MAX_ORDINAL, shown, whole_number
from kvmesh.errors import CodecError
from kvmesh.transport.nats.trust.nkey import user_key

HEADER: Final = "Kvmesh-Signature"
SIGNATURE_BYTES: Final = 64
MAX_SEAL: Final = 512
"""Characters; a seal has 184 at most."""

STALE_MS: Final = 30_000
"""What was signed longer ago, or that far in the future, is refused."""

MAX_SESSION: Final = 16
KEY_LETTERS: Final = 56

_FIND: Final = f"\r\n{HEADER}:".encode()


class Seal(msgspec.Struct, frozen=True):
    """Who signed and when: `key` is a public nkey, `session` one life of one process.

    Within a session (`time_ms`, `counter`) grows from message to message; `time_ms` is since 1970.
    """

    key: str
    session: str
    time_ms: int
    counter: int
    signature: bytes

    @property
    def moment(self) -> tuple[int, int]:
        """Return where in its session it stands."""
        return self.time_ms, self.counter


class Sealer:
    """Makes the seals of one process. `session` tells apart its lives, and processes of one key."""

    def __init__(self, seed: SigningKey, session: str) -> None:
        self.key = user_key(bytes(seed.verify_key))
        self._secret = bytes(seed) + bytes(seed.verify_key)
        self._session = session
        self._time_ms = self._counter = 0

    def seal(self, subject: str, payload: bytes, now_ms: int) -> str:
        """Return the header's value for `payload` on `subject`.

        A clock set back a little does not go back here, or receivers would see a replay; set back
        by more than what is stale anyway it does.
        """
        if not 0 <= self._time_ms - now_ms <= STALE_MS:
            self._time_ms = now_ms
        self._counter += 1
        head = f"{self.key} {self._session} {self._time_ms} {self._counter}"
        text = _signed(head, subject, payload)
        signature = crypto_sign(text, self._secret)[:SIGNATURE_BYTES]
        return f"{head} {b64encode(signature).decode()}"


def find_seal(headers: bytes | None) -> str:
    """Return the header's value in a raw header block; "" when there is none."""
    at = headers.find(_FIND) if headers else -1
    if headers is None or at < 0:
        return ""
    start = at + len(_FIND)
    end = headers.find(b"\r\n", start)
    return headers[start : end if end >= 0 else None].strip().decode("ascii", "replace")


def parse_seal(text: str) -> Seal:
    """Return the seal of a header's value. Raises `CodecError`."""
    parts = text.split(" ") if len(text) <= MAX_SEAL else []
    try:
        key, session, time_ms, counter, signature = parts
        seal = Seal(
            key,
            session,
            _number(time_ms),
            _number(counter),
            a2b_base64(signature, strict_mode=True),
        )
    except ValueError as error:
        raise CodecError(f"{HEADER}: {text[:60]!r}: not a signature: {error}") from error
    lengths = len(key) <= KEY_LETTERS and len(session) <= MAX_SESSION
    if not lengths or len(seal.signature) != SIGNATURE_BYTES:
        raise CodecError(f"{HEADER}: {text[:60]!r}: a part has another length")
    return seal


def is_genuine(seal: Seal, public: bytes, subject: str, payload: bytes) -> bool:
    """Return whether the owner of the raw `public` key signed `payload` for `subject`."""
    head = f"{seal.key} {seal.session} {seal.time_ms} {seal.counter}"
    try:
        crypto_sign_open(seal.signature + _signed(head, subject, payload), public)
    except (CryptoError, ValueError):
        return False
    return True


def _signed(head: str, subject: str, payload: bytes) -> bytes:
    return b"kvmesh-1\n%b\n%b\n%b" % (
        subject.encode(),
        head.encode(),
        hashlib.sha256(payload).digest(),
    )


def _number(text: str) -> int:
    number = whole_number(text, 0, MAX_ORDINAL)
    if number is None:
        raise ValueError(f"{shown(text)} is no number from 0 to 2^62")
    return number
