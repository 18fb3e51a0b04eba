"""TLS of a server whose certificates are read anew when their files change."""

import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from kvmesh.errors import ConfigError


class ReloadingTls:
    """A TLS context whose certificate, key and client CA are those of `files` at a handshake.

    `read` makes a context of what the files hold; it raises `ConfigError`. Files that cannot be
    read, as while they are being replaced, leave the last good ones in place and are warned of
    once. Raises `ConfigError` when the first ones cannot be used.
    """

    def __init__(self, files: Sequence[Path], read: Callable[[], ssl.SSLContext]) -> None:
        self._files = files
        self._read = read
        self._stamp = self._read_stamp()
        self._current = read()
        self.context = read()
        self.context.sni_callback = self._choose
        self.reloads = 0

    def _choose(self, socket: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Serve a handshake by what the files hold now. Called before the certificate is sent."""
        del name, context
        stamp = self._read_stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._current = self._read()
                self.reloads += 1
            except ConfigError as error:
                structlog.get_logger().warning(
                    "TLS files cannot be used: the ones before them stay", error=str(error)
                )
        socket.context = self._current

    def _read_stamp(self) -> tuple[tuple[int, int, int], ...]:
        stamps: list[tuple[int, int, int]] = []
        for path in self._files:
            try:
                found = path.stat()
            except OSError:
                stamps.append((0, 0, 0))
            else:
                stamps.append((found.st_ino, found.st_size, found.st_mtime_ns))
        return tuple(stamps)
