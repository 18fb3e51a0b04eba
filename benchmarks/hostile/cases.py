"""Requests that are meant to keep a router busy, as bytes."""

from collections.abc import Callable
from typing import Final, NamedTuple

MB: Final = 1 << 20
CHAT: Final = "/v1/chat/completions"
TEXT: Final = "/v1/completions"


class Case(NamedTuple):
    """A request; `body` makes it when it is needed."""

    name: str
    path: str
    body: Callable[[], bytes]
    framing: str = "length"
    headers: bytes = b""


def request_of(case: Case) -> bytes:
    """Return the whole request."""
    body = case.body()
    head = b"POST %b HTTP/1.1\r\nhost: x\r\n%b" % (case.path.encode(), case.headers)
    if case.framing == "length":
        return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)
    chunks = b"".join([b"1\r\n%c\r\n" % byte for byte in body])
    return b"%btransfer-encoding: chunked\r\n\r\n%b0\r\n\r\n" % (head, chunks)


def chat(content: bytes) -> bytes:
    return b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % content


def messages(one: bytes, count: int) -> bytes:
    return b'{"model":"m","messages":[%b]}' % b",".join([one] * count)


def prompt(value: bytes, fields: bytes = b"") -> bytes:
    return b'{"model":"m","prompt":%b%b}' % (value, fields)


def listed(one: bytes, count: int) -> bytes:
    return b"[%b]" % b",".join([one] * count)


HELLO: Final = b'{"role":"user","content":"hello"}'
ASK: Final = b'{"model":"m","messages":[' + HELLO + b"]"
DEEP: Final = 100_000

CASES: Final = (
    Case("small chat", CHAT, lambda: ASK + b"}"),
    Case(
        "100 kB chat",
        CHAT,
        lambda: messages(b'{"role":"user","content":"%b"}' % (b"a " * 500), 100),
    ),
    Case("1M messages", CHAT, lambda: messages(HELLO, 1_000_000)),
    Case("52k messages", CHAT, lambda: messages(HELLO, 52_000)),
    Case("20M lists as messages", CHAT, lambda: messages(b"[]", 20 * MB)),
    Case("10k empty messages", CHAT, lambda: messages(b"{}", 10_000)),
    Case(
        "80k content parts",
        CHAT,
        lambda: (
            b'{"model":"m","messages":[{"role":"user","content":'
            + listed(b'{"text":"a"}', 80_000)
            + b"}]}"
        ),
    ),
    Case("64 MB of ASCII", CHAT, lambda: chat(b"a" * (63 * MB))),
    Case("64 MB of line ends", CHAT, lambda: chat(b"a\\n" * (21 * MB))),
    Case("64 MB of CJK", CHAT, lambda: chat("中".encode() * (21 * MB))),
    Case("64 MB of \\u escapes", CHAT, lambda: chat(b"\\u4e2d" * (10 * MB))),
    Case("64 MB of quotes", CHAT, lambda: chat(b'\\"' * (31 * MB))),
    Case("64 MB of white space", CHAT, lambda: ASK + b" " * (63 * MB) + b"}"),
    Case(
        "64 MB in 60 messages",
        CHAT,
        lambda: messages(b'{"role":"user","content":"%b"}' % (b"a" * MB), 60),
    ),
    Case("4 MB of CJK", CHAT, lambda: chat("中".encode() * (4 * MB // 3 - 100))),
    Case("1 MB of line ends", CHAT, lambda: chat(b"a\\n" * (MB // 3 - 100))),
    Case(
        "40 MB of tools",
        CHAT,
        lambda: (
            ASK
            + b',"tools":'
            + listed(
                b'{"type":"function","function":{"name":"f","description":"%b"}}' % (b"x" * 1000),
                38_000,
            )
            + b"}"
        ),
    ),
    Case(
        "37k tools",
        CHAT,
        lambda: (
            ASK
            + b',"tools":'
            + listed(b'{"type":"function","function":{"name":"f"}}', 37_000)
            + b"}"
        ),
    ),
    Case(
        "1M logit_bias",
        CHAT,
        lambda: (
            ASK + b',"logit_bias":{' + b",".join([b'"%d":1' % i for i in range(1_000_000)]) + b"}}"
        ),
    ),
    Case(
        "200k logit_bias",
        CHAT,
        lambda: (
            ASK + b',"logit_bias":{' + b",".join([b'"%d":1' % i for i in range(200_000)]) + b"}}"
        ),
    ),
    Case("1M stop words", CHAT, lambda: ASK + b',"stop":' + listed(b'"a"', 1_000_000) + b"}"),
    Case("nested 100k deep", CHAT, lambda: ASK + b',"x":' + b"[" * DEEP + b"]" * DEEP + b"}"),
    Case(
        "nested 900 deep in tool calls",
        CHAT,
        lambda: (
            b'{"model":"m","messages":[{"role":"user","content":"x","tool_calls":['
            + b"[" * 900
            + b"]" * 900
            + b"]}]}"
        ),
    ),
    Case("1M token ids", TEXT, lambda: prompt(listed(b"12345", 1_000_000))),
    Case("10M token ids", TEXT, lambda: prompt(listed(b"12345", 10_000_000))),
    Case("1M prompts of one id", TEXT, lambda: prompt(listed(b"[1]", 1_000_000))),
    Case("200k prompts of one id", TEXT, lambda: prompt(listed(b"[1]", 200_000))),
    Case(
        "1M floats",
        TEXT,
        lambda: prompt(b'"x"', b',"x":' + listed(b"1.2345678901234567e-300", 1_000_000)),
    ),
    Case("a number of 60M digits", TEXT, lambda: prompt(b'"x"', b',"n":' + b"1" * (60 * MB))),
    Case(
        "a number of 60M digits elsewhere",
        TEXT,
        lambda: prompt(b'"x"', b',"x":' + b"1" * (60 * MB)),
    ),
    Case("64 MB prompt of one word", TEXT, lambda: prompt(b'"%b"' % (b"a" * (63 * MB)))),
    Case("64 prompts of 1 MB", TEXT, lambda: prompt(listed(b'"%b"' % (b"a" * (MB - 8000)), 63))),
    Case("4 MB in 1-byte chunks", CHAT, lambda: chat(b"a" * (4 * MB)), "chunked"),
    Case("30 MB, no JSON", TEXT, lambda: prompt(b'"%b' % (b"a" * (30 * MB)))[:-1]),
    Case("30 MB to no path", "/nothing", lambda: b"x" * (30 * MB)),
    Case("30 MB of text", TEXT, lambda: prompt(b'"%b"' % (b"a" * (30 * MB)))),
    Case("64 MB elsewhere", "/v1/audio/transcriptions", lambda: b"\x00" * (63 * MB)),
    Case("64 MB JSON elsewhere", "/v1/rerank", lambda: chat(b"a\\n" * (21 * MB))),
    Case("explain 64 MB of quotes", "/v1/route", lambda: chat(b'\\"' * (31 * MB))),
    Case(
        "explain 16M packed ids",
        "/v1/route",
        lambda: bytes(63 * MB),
        headers=b"content-type: application/octet-stream\r\n",
    ),
    Case(
        "explain 8M packed hashes",
        "/v1/route",
        lambda: bytes(63 * MB),
        headers=b"content-type: application/octet-stream\r\nx-kvmesh-body: hashes\r\n",
    ),
    Case(
        "100 headers of 600 bytes",
        CHAT,
        lambda: ASK + b"}",
        headers=b"".join([b"x-kvmesh-%d: %b\r\n" % (i, b"," * 600) for i in range(100)]),
    ),
    Case(
        "60 kB of labels",
        CHAT,
        lambda: ASK + b"}",
        headers=b"x-kvmesh-labels: %b\r\n" % b",".join([b"%d" % i for i in range(10_000)]),
    ),
    Case(
        "200k allowed workers",
        CHAT,
        lambda: (
            ASK
            + b',"kvmesh":{"allowed_workers":'
            + b"["
            + b",".join([b'"%d"' % i for i in range(200_000)])
            + b"]}}"
        ),
    ),
)
