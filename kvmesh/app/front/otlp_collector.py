"""One collector over OTLP/HTTP: a batch is posted, and what the answer means for it."""

import contextlib
import email.message
import http.client
import socket
import ssl
import zlib
from base64 import b64encode
from typing import Final
from urllib.parse import unquote, urlsplit

from kvmesh.app.front.otlp_encoding import rejected_spans
from kvmesh.app.front.otlp_messages import CollectorOptions, Posted
from kvmesh.bounds import MAX_SECONDS, real_number
from kvmesh.errors import CodecError, ConfigError

MOST_ANSWER_BYTES: Final = 64 * 1024
_GZIP: Final = 31
_SUCCESS: Final = range(200, 300)
_RETRIED: Final = frozenset({429, 502, 503, 504})
"""Source: OTLP specification, "OTLP/HTTP Response", retryable response codes."""

_BROKEN: Final = (OSError, http.client.HTTPException, ValueError)
"""ValueError: a status line or a length that http.client cannot read."""


class Collector:
    """Posts batches, one at a time, over one connection that is kept open.

    `post` blocks: it is for a thread. Redirects are not followed: a batch, with its headers, goes
    where it was said and nowhere else. Raises `ConfigError` for a URL, a certificate or a header
    that cannot be used.
    """

    def __init__(self, options: CollectorOptions) -> None:
        parts = urlsplit(options.url)
        try:
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError as error:
            raise ConfigError(f"{options.url}: {error}; write http://host:4318") from error
        if not self._host or parts.scheme not in {"http", "https"}:
            raise ConfigError(f"{options.url}: write http://host:4318")
        self._options = options
        self.timeout_s = options.timeout_s
        self.shown_url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._secure = parts.scheme == "https"
        self._tls = _tls(options) if self._secure else None
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = _headers(options)
        self._proxy = urlsplit(options.proxy)
        through = self._proxy.hostname is not None and not self._secure
        self._target = f"http://{parts.netloc.rpartition('@')[2]}{target}" if through else target
        if through:
            self._headers.update(self._proxy_key())
        self._connection: http.client.HTTPConnection | None = None

    def post(self, body: bytes) -> Posted:
        """Send one batch and read the answer; never raises for what a collector does."""
        if self._options.compression != "none":
            wbits = _GZIP if self._options.compression == "gzip" else zlib.MAX_WBITS
            body = zlib.compress(body, 1, wbits)
        connection = self._connection or self._connect()
        try:
            connection.request("POST", self._target, body, self._headers)
            response = connection.getresponse()
            answer = response.read(MOST_ANSWER_BYTES + 1)
        except _BROKEN as error:
            self._give_up(connection)
            return Posted(accepted=False, error=f"{type(error).__name__}: {error}", again=True)
        if response.will_close or not response.isclosed():
            self._give_up(connection)
        return _judge(response.status, response.headers, answer[:MOST_ANSWER_BYTES])

    def close(self) -> None:
        """Give the connection up; a `post` under way in another thread fails."""
        if self._connection is not None:
            self._give_up(self._connection)

    def _give_up(self, connection: http.client.HTTPConnection) -> None:
        if self._connection is connection:
            self._connection = None
        if (sock := connection.sock) is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        proxy, timeout_s = self._proxy, self._options.timeout_s
        host, port = self._host, self._port
        if proxy.hostname is not None:
            host, port = proxy.hostname, proxy.port
        if self._tls is not None:
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=timeout_s, context=self._tls
            )
            if proxy.hostname is not None:
                made.set_tunnel(self._host, self._port, self._proxy_key())
        else:
            made = http.client.HTTPConnection(host, port, timeout=timeout_s)
        self._connection = made
        return made

    def _proxy_key(self) -> dict[str, str]:
        if self._proxy.username is None:
            return {}
        words = f"{unquote(self._proxy.username)}:{unquote(self._proxy.password or '')}"
        return {"Proxy-Authorization": f"Basic {b64encode(words.encode()).decode()}"}


def _headers(options: CollectorOptions) -> dict[str, str]:
    own = {"Content-Type": "application/x-protobuf", "User-Agent": "kvmesh-otlp"}
    found = own | dict(options.headers)
    if options.compression != "none":
        found["Content-Encoding"] = options.compression
    for name, value in found.items():
        if not name.isascii() or not name.isprintable() or not value.isprintable():
            raise ConfigError(f"OTEL_EXPORTER_OTLP_HEADERS: {name!r} is no header that can be sent")
    return found


def _tls(options: CollectorOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.ca_file or None)
        if options.client_certificate:
            key = options.client_key or None
            context.load_cert_chain(options.client_certificate, key)
    except OSError as error:
        names = f"{options.ca_file} {options.client_certificate} {options.client_key}".strip()
        raise ConfigError(
            f"OTEL_EXPORTER_OTLP_CERTIFICATE, …_CLIENT_CERTIFICATE, …_CLIENT_KEY: {names}: {error}"
        ) from error
    return context


def _judge(status: int, headers: email.message.Message, answer: bytes) -> Posted:
    if status in _SUCCESS:
        try:
            rejected, why = rejected_spans(answer)
        except CodecError as error:
            # It says that it took them: sending them again would make two of each.
            return Posted(accepted=True, error=str(error))
        return Posted(accepted=True, rejected=rejected, error=why)
    words = f"answered {status}"
    if status not in _RETRIED:
        return Posted(accepted=False, error=words)
    wait_s = real_number(headers.get("Retry-After", ""), 0.0, MAX_SECONDS) or 0.0
    return Posted(accepted=False, error=words, again=True, wait_s=wait_s)
