"""Sessions of browsers whose users showed a key once: cookies that are sealed, and hold no key."""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from hashlib import sha256
from struct import Struct
from typing import Final

import msgspec

SESSION_S: Final = 12 * 3600.0
"""A working day: then the key is asked for again."""

NONCE_BYTES: Final = 16
MOST_ENDED: Final = 64
"""Sessions of one key that were ended and are remembered; beyond it all of that key are over."""

AHEAD_S: Final = 60.0
"""How far the clock of another process with the same secret may be ahead."""

_ID_BYTES: Final = 16
_BODY: Final = Struct(f">{_ID_BYTES}sQ{NONCE_BYTES}s")
_SEAL_BYTES: Final = sha256().digest_size
_LENGTH: Final = len(urlsafe_b64encode(bytes(_BODY.size + _SEAL_BYTES)))


class _Ended(msgspec.Struct):
    """Of one key: sessions that were ended, by nonce with the time they began, ms; and until when
    all that began are over.
    """

    nonces: dict[bytes, int] = {}
    before_ms: int = 0


class BrowserSessions:
    """Seals and opens sessions of keys, which are known by the digest that a file of keys holds.

    A cookie names a key by what only `secret` can make of its digest: it is over with the key.
    Nothing is kept of a session but its end, so that processes with the same secret know each
    other's; ends are known where they were told. `nonce` (random, 16 bytes) and Unix time are the
    caller's. Bounded: by keys.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = sha256(b"kvmesh browser session " + secret).digest()
        self._digests: dict[bytes, str] = {}
        self._ended: dict[bytes, _Ended] = {}

    def replace(self, digests: Iterable[str]) -> None:
        """Know these keys from now on: sessions of others are over."""
        self._digests = {self._name(digest): digest for digest in digests}
        self._ended = {one: ended for one, ended in self._ended.items() if one in self._digests}

    def begin(self, digest: str, nonce: bytes, now: float) -> str:
        """Return the value of a new session's cookie."""
        body = _BODY.pack(self._name(digest), int(now * 1000.0), nonce)
        return urlsafe_b64encode(body + self._seal(body)).decode()

    def find(self, value: str, now: float) -> str | None:
        """Return the digest of the key whose session it is; None: of no known key, or over."""
        opened = self._open(value, now)
        return None if opened is None else self._digests[opened[0]]

    def end(self, value: str, now: float) -> None:
        """End a session; what is none changes nothing."""
        opened = self._open(value, now)
        if opened is None:
            return
        name, began_ms, nonce = opened
        ended = self._ended.setdefault(name, _Ended())
        oldest_ms = int((now - SESSION_S) * 1000.0)
        ended.nonces = {one: ms for one, ms in ended.nonces.items() if ms > oldest_ms}
        ended.nonces[nonce] = began_ms
        if len(ended.nonces) > MOST_ENDED:
            ended.before_ms = int(now * 1000.0)
            ended.nonces = {}

    def _open(self, value: str, now: float) -> tuple[bytes, int, bytes] | None:
        """Return (name of the key, when it began in ms, nonce) of a session that is not over."""
        if len(value) != _LENGTH or not value.isascii():
            return None
        try:
            data = urlsafe_b64decode(value)
        except ValueError:
            return None
        body = data[: _BODY.size]
        if not hmac.compare_digest(data[_BODY.size :], self._seal(body)):
            return None
        name, began_ms, nonce = _BODY.unpack(body)
        age_s = now - began_ms / 1000.0
        if name not in self._digests or not -AHEAD_S <= age_s < SESSION_S:
            return None
        ended = self._ended.get(name)
        if ended is not None and (nonce in ended.nonces or began_ms <= ended.before_ms):
            return None
        return name, began_ms, nonce

    def _seal(self, body: bytes) -> bytes:
        return hmac.digest(self._secret, b"session" + body, "sha256")

    def _name(self, digest: str) -> bytes:
        return hmac.digest(self._secret, b"key" + digest.encode(), "sha256")[:_ID_BYTES]
