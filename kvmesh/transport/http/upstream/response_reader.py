"""Bytes of one upstream connection in, one response out: head, body pieces, a certain end."""

import re
from enum import Enum
from functools import lru_cache
from typing import Final

import httptools

from kvmesh.transport.http.wire.headers import (
    EAGER_HEAD_BYTES,
    MAX_FRAMING_BYTES,
    Header,
    whole_lines,
)

_MAX_HEAD_BYTES: Final = 128 * 1024
_MAX_HEADERS: Final = 256
_SWITCHING: Final = 101
_FIRST_INTERIM: Final = 100
_FIRST_FINAL: Final = 200
_BODILESS: Final = frozenset({204, 304})
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
_LAST_CHUNK: Final = b"0\r\n\r\n"
_SIZE: Final = re.compile(rb"[0-9a-fA-F]{1,6}")
_MAX_SIZE_LINE: Final = 8


@lru_cache(maxsize=4096)
def chunk_size(line: bytes) -> int:
    """Return the size in a plain chunk size line; for any other, and the last chunk's, a value
    that fits no length.
    """
    size = int(line, 16) if _SIZE.fullmatch(line) else 0
    return size or -_MAX_SIZE_LINE - 4


class ReadStage(Enum):
    """How far the response is."""

    HEAD = 0
    BODY = 1
    COMPLETE = 2


HEAD: Final = ReadStage.HEAD
BODY: Final = ReadStage.BODY
COMPLETE: Final = ReadStage.COMPLETE
"""As in `request_reader`: a module's name is eight times as quick as a member of an Enum."""


class ResponseReader:
    """The parser of one upstream connection; `begin` before each response.

    A response whose head is known (`take_head`) and whose chunks are plain passes by llhttp's
    parser, which is given the head once something else comes.

    `feed` returns the body bytes that arrived, chunk framing taken off. Once `stage` is BODY,
    `status` and `headers` are final (1xx are skipped). `reusable` after COMPLETE tells whether
    the connection may carry another request. `until_close`: only the connection's end ends it.
    `between_chunks`: the parser, which stands between two chunks, need not see bytes that are whole
    chunks. `unseen` is the head that it has not seen either, so it need not see the last chunk.
    `fresh`: nothing was read since `begin`.

    Trailers are dropped. The first one that does not end in the piece it came in makes the response
    COMPLETE, as nothing of it can follow; the connection is then not `reusable`.
    """

    __slots__ = (
        "_after_chunk", "_expect_body", "_framing_bytes", "_head_bytes", "_interim", "_keep_alive",
        "_line", "_parser", "_pieces", "_trailing", "between_chunks", "fresh", "headers",
        "reusable", "stage", "status", "unseen", "until_close",
    )  # fmt: skip

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._line: bytearray | None = None
        self.begin()

    def begin(self, *, expect_body: bool = True) -> None:
        """Await a response; `expect_body` False for HEAD."""
        self.fresh = expect_body
        self.unseen = b""
        self._expect_body = expect_body
        self._head_bytes = self._framing_bytes = 0
        self._interim = self._trailing = False
        self._line = None
        self._keep_alive = False
        self.reusable = False
        self._after_chunk = False
        self.between_chunks = False
        self.until_close = False
        self.stage = HEAD
        self.status = 0
        self.headers: list[Header] = []

    def close(self) -> None:
        """Break the reference cycle with the C parser."""
        del self._parser

    def take_head(self, head: bytes, status: int) -> None:
        """Learn of a head that was read elsewhere, of a response in chunks that stays."""
        self.fresh = False
        self.unseen = head
        self._keep_alive = self.between_chunks = True
        self.status = status
        self.stage = BODY

    def take_end(self) -> None:
        """Learn that a response whose head is `unseen` has ended; be ready for another one."""
        self.unseen = b""
        self.between_chunks = False
        self.stage = HEAD
        self.fresh = True

    def feed(self, data: bytes) -> bytes:
        """Return the body bytes in `data`. Raises `ValueError` for what is not HTTP/1.1.

        Behind a head that was known it looks for whole plain chunks itself; if `data` holds
        anything else, the parser gets the head and all of it.
        """
        if self.unseen:
            at, length = 0, len(data)
            pieces: list[bytes] = []
            while at < length:
                line = data.find(b"\r\n", at, at + _MAX_SIZE_LINE)
                end = line + 2 + chunk_size(data[at:line]) if line > at else 0
                if end <= at or data[end : end + 2] != b"\r\n":
                    break
                pieces.append(data[line + 2 : end])
                at = end + 2
            if at == length:
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if length == at + len(_LAST_CHUNK) and data.endswith(_LAST_CHUNK):
                self.between_chunks = False
                self.unseen = b""
                self.reusable = self._keep_alive
                self.stage = COMPLETE
                return b"".join(pieces)
        return self._parse(data)

    def _parse(self, data: bytes) -> bytes:
        parser = self._parser
        self.fresh = False
        if self.unseen:
            self.stage = HEAD
            parser.feed_data(self.unseen)
            self.unseen = b""
        self._after_chunk = False
        size = len(data)
        if self._head_bytes > EAGER_HEAD_BYTES and self.stage is HEAD:
            self._line, data = whole_lines(self._line, data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            raise ValueError("upstream switched protocols unasked") from error
        except httptools.HttpParserError as error:
            if self.stage is not COMPLETE:
                raise ValueError(f"malformed response: {error.__context__ or error}") from error
            self.reusable = False
        if self.stage is HEAD:
            self._head_bytes += size
            if self._head_bytes > _MAX_HEAD_BYTES:
                raise ValueError(f"response head exceeds {_MAX_HEAD_BYTES} bytes")
        elif self.stage is BODY:
            self._framing_bytes = 0 if self._pieces else self._framing_bytes + size
            if self._framing_bytes > MAX_FRAMING_BYTES:
                raise ValueError(f"{self._framing_bytes} bytes of chunk framing without content")
        # What a chunk's end or the head is followed by up to a line's end could only be the next
        # chunk's size, and that would have been told.
        self.between_chunks = self._after_chunk and data.endswith(b"\r\n")
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        return body

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header; a trailer is dropped, and means that no content follows."""
        if self.stage is HEAD:
            self.headers.append((name, value))
        elif self.stage is BODY:
            self._trailing = True
            self.stage = COMPLETE

    def on_headers_complete(self) -> None:
        """Take the status; an interim response (1xx) is forgotten, but for the end of HTTP."""
        if self.stage is COMPLETE:
            self.reusable = False
            return
        parser = self._parser
        status = parser.get_status_code()
        if status < _FIRST_FINAL:
            if status == _SWITCHING or status < _FIRST_INTERIM:
                raise ValueError(f"status {status}, which nothing asked for")
            self._interim = True
            self.headers.clear()
            return
        if len(self.headers) > _MAX_HEADERS:
            raise ValueError(f"response has more than {_MAX_HEADERS} headers")
        self.headers = [(name.lower(), value.rstrip(b" \t")) for name, value in self.headers]
        self.status = status
        self._keep_alive = parser.should_keep_alive()
        self.until_close = (
            not self._keep_alive
            and status not in _BODILESS
            and _FRAMING.isdisjoint([name for name, _ in self.headers])
        )
        self._after_chunk = self._expect_body and (b"transfer-encoding", b"chunked") in self.headers
        self.stage = BODY if self._expect_body else COMPLETE

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        if self.stage is BODY:
            self._pieces.append(body)
        else:
            self.reusable = False

    def on_chunk_header(self) -> None:
        """Learn that a chunk begins."""
        self._after_chunk = False

    def on_chunk_complete(self) -> None:
        """Learn that a chunk has ended."""
        self._after_chunk = self.stage is BODY

    def on_message_complete(self) -> None:
        """Learn the end, unless it is that of an interim response."""
        self._after_chunk = False
        if self._interim:
            self._interim = False
        elif self.stage is not COMPLETE or self._trailing:
            self._trailing = False
            self.reusable = self._keep_alive
            self.stage = COMPLETE
