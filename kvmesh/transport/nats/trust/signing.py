"""What one process signs, and what it believes."""

from pathlib import Path

from nacl.signing import SigningKey
from structlog.typing import FilteringBoundLogger

from kvmesh.errors import ConfigError
from kvmesh.ports import Refusals
from kvmesh.transport.nats.trust.guard import Guard
from kvmesh.transport.nats.trust.signer import Signer


class Signing:
    """Signs with the key that the process logs in with, and guards by the trust file.

    Before `begin`, and without a key, nothing is signed; without a trust file all is believed.
    """

    def __init__(self, log: FilteringBoundLogger) -> None:
        self.signer: Signer | None = None
        self.guard: Guard | None = None
        self._log = log

    def begin(
        self, namespace: str, seed: SigningKey | None, trust: Path | None, *, serves: bool = True
    ) -> None:
        """Sign and guard from now on; a process that `serves`, unlike a tool, says if it does not.

        Raises `ConfigError` for an unusable trust file, and for one without a key: the others would
        refuse what this process says.
        """
        if seed is not None:
            self.signer = Signer(namespace, seed)
        if trust is None:
            if seed is not None and serves:
                self._log.warning(
                    "messages of others are not verified: give --nats-trust the trust.json that "
                    "kvmesh nats-accounts writes"
                )
            return
        if self.signer is None:
            raise ConfigError(
                f"--nats-trust {trust}: needs --nats-creds to sign with, or "
                "others would refuse what this process says"
            )
        self.guard = Guard(namespace, trust, self.signer.key, self._log)

    def admits_value(self, subject: str, headers: bytes, data: bytes, stored: str) -> bool:
        """Return whether a value read from a store counts: see `Guard.admits_value`."""
        return self.guard is None or self.guard.admits_value(subject, headers, data, stored)

    def warnings(self) -> tuple[str, ...]:
        """Return what is not believed now, one line each."""
        return () if self.guard is None else self.guard.warnings()

    def unverified(self) -> Refusals:
        """Return what came and was not believed."""
        if self.guard is not None:
            return self.guard.statistics()
        return Refusals(verifies=None if self.signer is None else False)
