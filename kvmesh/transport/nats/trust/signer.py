"""Signs what this process says, where its subject is one of those that are signed."""

import secrets
import time
from collections.abc import Callable
from typing import Final

from nacl.signing import SigningKey

from kvmesh.transport.nats.trust.claim import Claims
from kvmesh.transport.nats.trust.seal import HEADER, Sealer

SESSION_BYTES: Final = 6
_MS: Final = 1_000_000


class Signer:
    """Signs heartbeats, commands, leases and manifests of one mesh with the process's nkey."""

    def __init__(
        self, namespace: str, seed: SigningKey, *, wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._claims = Claims(namespace)
        self._sealer = Sealer(seed, secrets.token_hex(SESSION_BYTES))
        self._wall_ns = wall_ns
        self.key = self._sealer.key

    def sign(
        self, subject: str, payload: bytes, headers: dict[str, str] | None
    ) -> dict[str, str] | None:
        """Return the headers to send with a message: a signature more, where it is to be signed."""
        if self._claims.read(subject) is None:
            return headers
        seal = self._sealer.seal(subject, payload, self._wall_ns() // _MS)
        return {**(headers or {}), HEADER: seal}
