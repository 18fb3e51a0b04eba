"""Refuses what is not signed by somebody who may say it."""

import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from structlog.typing import FilteringBoundLogger

from kvmesh.errors import ConfigError
from kvmesh.ports import Refusals
from kvmesh.transport.nats.trust.alarms import Alarms
from kvmesh.transport.nats.trust.anchors import read_anchors
from kvmesh.transport.nats.trust.claim import Claims
from kvmesh.transport.nats.trust.freshness import Freshness
from kvmesh.transport.nats.trust.judgement import Message, Refusal, judge
from kvmesh.transport.nats.trust.seal import find_seal

CHECK_S: Final = 1.0
"""How often it is looked whether the trust file changed."""

_MS: Final = 1_000_000


class Guard:
    """Takes or refuses messages and stored values by the trust file, which is read anew within a
    second of a change; a broken one is said and changes nothing.

    Raises `ConfigError` when the file cannot be read or is no trust file.
    """

    def __init__(
        self,
        namespace: str,
        path: Path,
        own_key: str,
        log: FilteringBoundLogger,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.claims = Claims(namespace)
        self._path, self._own_key, self._log = path, own_key, log
        self._monotonic, self._wall_ns = monotonic, wall_ns
        self._since_ms = wall_ns() // _MS
        self._alarms = Alarms(log)
        self._taken: dict[int, Freshness] = {}
        self._stamp = _stamp(path)
        self._anchors = read_anchors(path)
        self._broken = ""
        self._next_check_s = monotonic() + CHECK_S
        self._report_own_key()

    def admits(self, subscription: int, subject: str, headers: bytes | None, data: bytes) -> bool:
        """Return whether a message that came may be delivered. Counts and alarms one that may not.

        Two subscriptions to one subject are given each message once.
        """
        claim = self.claims.read(subject)
        if claim is None:
            return True
        self._check()
        message = Message(claim, subject, find_seal(headers), data)
        taken = self._taken.setdefault(subscription, Freshness())
        now_ms = self._wall_ns() // _MS
        return self._pass(message, judge(message, self._anchors, now_ms, taken, self._since_ms))

    def admits_value(self, subject: str, headers: bytes | None, data: bytes, stored: str) -> bool:
        """Return whether a value read from a store counts; `stored` is when it was, RFC 3339.

        An old one that is written again later than 30 s after it was signed does not.
        """
        claim = self.claims.read(subject)
        if claim is None:
            return True
        self._check()
        message = Message(claim, subject, find_seal(headers), data)
        return self._pass(message, judge(message, self._anchors, _to_ms(stored)))

    def forget(self, subscription: int) -> None:
        """Drop what is remembered of a subscription that ended."""
        self._taken.pop(subscription, None)

    def statistics(self) -> Refusals:
        """Return what was refused."""
        now = self._monotonic()
        return Refusals(
            verifies=True,
            counts=self._alarms.counts(),
            skews_s=self._alarms.skews_s(now),
            lines=self.warnings(),
        )

    def warnings(self) -> tuple[str, ...]:
        """Return what is refused now, and what of the trust file is wrong, one line each."""
        self._check()
        lines = [f"{self._broken}; the old one stays"] if self._broken else []
        if self._own_key not in self._anchors:
            lines.append(self._unknown())
        return (*lines, *self._alarms.warnings(self._monotonic()))

    def _pass(self, message: Message, refusal: Refusal | None) -> bool:
        if refusal is not None:
            self._alarms.note(message, refusal, self._monotonic())
            return False
        self._alarms.note_good(message)
        return True

    def _check(self) -> None:
        now = self._monotonic()
        if now < self._next_check_s:
            return
        self._next_check_s = now + CHECK_S
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._anchors = read_anchors(self._path)
        except ConfigError as error:
            self._broken = str(error)
            self._log.error("trust file not read, the old one stays", error=self._broken)
            return
        self._broken = ""
        for taken in self._taken.values():
            taken.retain(self._anchors.__contains__)
        self._log.info("trust file read", path=str(self._path), keys=len(self._anchors))
        self._report_own_key()

    def _report_own_key(self) -> None:
        if self._own_key not in self._anchors:
            self._log.error("own key is not trusted", why=self._unknown())

    def _unknown(self) -> str:
        return (
            f"--nats-trust {self._path}: lacks this process's own key {self._own_key}: other "
            "processes refuse what it says; run kvmesh nats-accounts again, or fix --nats-creds"
        )


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return what changes with the file; a link to another file, as Kubernetes makes, counts."""
    try:
        found = path.stat()
    except OSError:
        return (-1, -1, -1)
    return found.st_mtime_ns, found.st_size, found.st_ino


def _to_ms(stored: str) -> int:
    """Return milliseconds since 1970; 0, which is stale, for what is no time."""
    try:
        return int(datetime.fromisoformat(stored).timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0
