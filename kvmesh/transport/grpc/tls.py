"""TLS of a gRPC server: HTTP/2 by ALPN, and certificates read anew when their files change."""

import ssl
from pathlib import Path
from typing import Final

import structlog

from kvmesh.errors import ConfigError

_ALPN: Final = ["h2"]


class ReloadingTls:
    """A TLS context whose certificate, key and client CA are those of their files at a handshake.

    Files that cannot be read, as while they are being replaced, leave the last good ones in place
    and are warned of once. Raises `ConfigError` when the first ones cannot be used.
    """

    def __init__(self, cert: Path, key: Path | None, client_ca: Path | None = None) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._files = [path for path in (cert, key, client_ca) if path is not None]
        self._stamp = self._read_stamp()
        self._current = self._read()
        self.context = self._read()
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

    def _read(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(_ALPN)
        try:
            context.load_cert_chain(self._cert, self._key)
            if self._client_ca is not None:
                context.load_verify_locations(self._client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            names = ", ".join(map(str, self._files))
            raise ConfigError(f"TLS files {names}: {error}") from error
        return context
