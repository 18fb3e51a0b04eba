"""Requests nobody should take, and the status each deserves; shared by unit and socket tests."""

from typing import NamedTuple


class Malformed(NamedTuple):
    """Bytes of one connection, the status to answer; None: closed without a word."""

    name: str
    data: bytes
    status: int | None
    nginx: int | None
    """What nginx 1.22 answered to the same bytes (0: it waits for more, or closes silently)."""


def post(*lines: bytes, body: bytes = b"") -> bytes:
    """Return a POST with a Host, these further header lines and `body`."""
    return b"\r\n".join([b"POST /v1/x HTTP/1.1", b"Host: a", *lines, b"", body])


def get(*lines: bytes) -> bytes:
    """Return a GET with exactly these header lines."""
    return b"\r\n".join([b"GET / HTTP/1.1", *lines, b"", b""])


CHUNKED = b"Transfer-Encoding: chunked"

CORPUS = (
    Malformed(
        "length and chunked", post(b"Content-Length: 3", CHUNKED, body=b"0\r\n\r\n"), 400, 400
    ),
    Malformed(
        "chunked and length", post(CHUNKED, b"Content-Length: 3", body=b"0\r\n\r\n"), 400, 400
    ),
    Malformed(
        "two different lengths",
        post(b"Content-Length: 1", b"Content-Length: 2", body=b"ab"),
        400,
        400,
    ),
    Malformed(
        "two equal lengths", post(b"Content-Length: 1", b"Content-Length: 1", body=b"a"), 400, 400
    ),
    Malformed("list of lengths", post(b"Content-Length: 1, 1", body=b"a"), 400, 400),
    Malformed("signed length", post(b"Content-Length: +1", body=b"a"), 400, 400),
    Malformed("negative length", post(b"Content-Length: -1"), 400, 400),
    Malformed("hexadecimal length", post(b"Content-Length: 0x1", body=b"a"), 400, 400),
    Malformed("empty length", post(b"Content-Length: ", body=b"a"), 400, 400),
    Malformed("length over 64 bits", post(b"Content-Length: 99999999999999999999"), 400, 400),
    Malformed("length over the limit", post(b"Content-Length: 999999999"), 413, 413),
    Malformed(
        "unknown coding", post(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"), 501, 501
    ),
    Malformed("coding that ends in chunked", post(b"Transfer-Encoding: xchunked"), 501, 501),
    Malformed("chunked not last", post(b"Transfer-Encoding: chunked, gzip"), 400, 501),
    Malformed("chunked twice", post(CHUNKED, CHUNKED, body=b"0\r\n\r\n"), 400, 400),
    Malformed("chunked by vertical tab", post(b"Transfer-Encoding: \x0bchunked"), 400, 501),
    Malformed(
        "chunked in HTTP/1.0",
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
        400,
    ),
    Malformed("folded header", post(b"X: a", b" b"), 400, 400),
    Malformed("folded length", post(b"Content-Length:", b" 1", body=b"a"), 400, 400),
    Malformed("bare line feeds", b"GET / HTTP/1.1\nHost: a\n\n", 400, 200),
    Malformed("one bare line feed", b"GET / HTTP/1.1\r\nHost: a\n\r\n", 400, 200),
    Malformed("bare carriage return", b"GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", 400, 400),
    Malformed("NUL in a value", get(b"Host: a", b"X: a\0b"), 400, 400),
    Malformed("control in a value", get(b"Host: a", b"X: a\x01b"), 400, 200),
    Malformed("NUL in a name", get(b"Host: a", b"X\0: b"), 400, 400),
    Malformed("NUL in the target", b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", 400, 400),
    Malformed("space before the colon", get(b"Host : a"), 400, 400),
    Malformed("empty name", get(b"Host: a", b": b"), 400, 400),
    Malformed("line without a colon", get(b"Host: a", b"nonsense"), 400, 200),
    Malformed("space before the first header", b"GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400, 400),
    Malformed("no Host", get(b"X: a"), 400, 400),
    Malformed("two Hosts", get(b"Host: a", b"Host: b"), 400, 400),
    Malformed("Host with a slash", get(b"Host: a/b"), 400, 400),
    Malformed("Host with a space", get(b"Host: a b"), 400, 400),
    Malformed("chunk size not hexadecimal", post(CHUNKED, body=b"zz\r\nab"), 400, 400),
    Malformed("chunk size negative", post(CHUNKED, body=b"-1\r\na"), 400, 400),
    Malformed("chunk size with 0x", post(CHUNKED, body=b"0x1\r\na\r\n0\r\n\r\n"), 400, 400),
    Malformed("chunk size over 64 bits", post(CHUNKED, body=b"f" * 17 + b"\r\na"), 400, 400),
    Malformed("chunk longer than its size", post(CHUNKED, body=b"1\r\nab\r\n0\r\n\r\n"), 400, 400),
    Malformed("chunks by bare line feeds", post(CHUNKED, body=b"1\na\n0\n\n"), 400, 200),
    Malformed("space behind a chunk size", post(CHUNKED, body=b"1 \r\na\r\n0\r\n\r\n"), 400, 200),
    Malformed("byte over 127 in the target", b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", 400, 200),
    Malformed("fragment in the target", b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", 400, 200),
    Malformed("target that is no path", b"GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400, 400),
    Malformed("CONNECT", b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 405, 400),
    Malformed("HTTP/0.9", b"GET /\r\n\r\n", 505, 200),
    Malformed("HTTP/2 in the clear", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, 400),
    Malformed("HTTP/2.0 in a request line", b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505, 505),
    Malformed("HTTP/1.2", b"GET / HTTP/1.2\r\nHost: a\r\n\r\n", 400, 200),
    Malformed("unknown method", b"FOO / HTTP/1.1\r\nHost: a\r\n\r\n", 400, 200),
    Malformed("method in lower case", b"get / HTTP/1.1\r\nHost: a\r\n\r\n", 400, 400),
    Malformed("space before the method", b" GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400, 400),
    Malformed("TLS to a plain port", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, 400),
    Malformed("expectation other than continue", get(b"Host: a", b"Expect: tea"), 417, 200),
    Malformed("target too long", b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n" % (b"a" * 9000), 414, 414),
    Malformed("one header too large", get(b"Host: a", b"X: " + b"a" * 70_000), 431, 400),
    Malformed("headers too many", get(b"Host: a", *[b"X: a"] * 200), 431, 200),
)
