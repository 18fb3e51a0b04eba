"""The data plane's readers under any bytes: nothing raises, and cuts change nothing."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final, get_args

from kvmesh._native import EventStream as CompiledStream
from kvmesh._native import take_answer
from kvmesh.core.chat.answer_json import MAX_TOOL, Stop
from kvmesh.core.engines.event_stream import LAST_CHUNK, EventStream, new_event_stream
from kvmesh.transport.http.server.limits import BodyBudget, HttpLimits
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.server.request_reader import BODY, RequestReader
from kvmesh.transport.http.upstream.response_reader import COMPLETE, ResponseReader
from tests.reference.engines.kept_output import KeptStream, NoJsonError
from tests.unit.transport.http.malformed import CORPUS, get, post

LIMITS: Final = HttpLimits(
    max_body_bytes=400,
    max_header_bytes=500,
    max_target_bytes=100,
    max_headers=10,
    max_pipelined=5,
)
EVENT: Final = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
LONG: Final = b"\xc0"
"""From this first byte on, the first piece comes so often that no event may hold it."""
OVERLONG: Final = 70_000
CHUNKED: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def cut(data: bytes) -> tuple[bytes, list[bytes]]:
    """Return the bytes behind the first three, and the same cut where these three say."""
    plan, rest = data[:3], data[3:]
    edges = sorted({0, *(at % (len(rest) + 1) for at in plan), len(rest)})
    return rest, [rest[start:stop] for start, stop in pairwise(edges)]


def request(data: bytes) -> None:
    """Read requests: the same whole, cut and byte by byte, and no body stays charged."""
    rest, pieces = cut(data)
    bytewise = [rest[at : at + 1] for at in range(len(rest))]
    assert _requests(pieces) == _requests([rest]) == _requests(bytewise)


def _requests(pieces: list[bytes]) -> list[object]:
    budget = BodyBudget(LIMITS.max_total_body_bytes)
    reader = RequestReader(LIMITS, budget)
    for piece in pieces:
        reader.feed(piece)
    found: list[object] = []
    for item in reader.ready:
        if isinstance(item, Request):
            found.append((item.method, item.target, item.headers, item.body, item.http_1_0))
            item.uncharge()
        else:
            found.append("refused")  # which of several faults is told depends on the cut
    assert reader.phase is BODY or budget.used == 0, (reader.phase, budget.used)
    reader.close()
    return found


def response(data: bytes) -> None:
    """Read responses: the same with chunks that pass by the parser as byte by byte, and of what is
    taken at once.
    """
    rest, pieces = cut(data)
    bytewise = [rest[at : at + 1] for at in range(len(rest))]
    whole = _response([rest])
    assert _response(pieces) == whole == _response(bytewise)
    taken = take_answer(rest, 1 << 14, 100, 1 << 16)
    if taken is not None and taken[3] is not None:
        assert (taken[3], taken[0], COMPLETE, True, False) == whole


def _response(pieces: list[bytes]) -> object:
    reader = ResponseReader()
    body = b""
    try:
        for piece in pieces:
            if reader.between_chunks and new_event_stream().take(piece, b""):
                by_parser = ResponseReader()
                by_parser.feed(CHUNKED)
                body += by_parser.feed(piece)
            else:
                body += reader.feed(piece)
    except ValueError:
        return "malformed"
    return body, reader.status, reader.stage, reader.reusable, reader.until_close


def sse(data: bytes) -> None:
    """Scan events: the same tokens however they are cut; a gate loses no byte. The compiled stream
    says what the pure one says, chunk by chunk, too.
    """
    rest, pieces = cut(data)
    if pieces and data[:1] >= LONG:
        pieces[0] *= 1 + OVERLONG // max(1, len(pieces[0]))
        rest = b"".join(pieces)
    pure, native, hiding = EventStream(), new_event_stream(), new_event_stream()
    hiding.hides_usage = True
    for piece in pieces:
        hiding.take(piece, 1)
        hiding.feed(piece)
        hiding.take(b"%x\r\n%b\r\n" % (len(piece), piece), 0)
        assert native.take(piece, 1) == pure.take(piece, 1)
        assert native.feed(piece) == pure.feed(piece)
        framed = b"%x\r\n%b\r\n" % (len(piece), piece)
        assert native.take(framed, 0) == pure.take(framed, 0)
        assert native.take(framed + LAST_CHUNK, 1) == pure.take(framed + LAST_CHUNK, 1)
        assert _seen(native) == _seen(pure)
    assert native.flush() == pure.flush()
    assert _seen(native) == _seen(pure)
    whole, cut_up = EventStream(), EventStream()
    whole.feed(rest)
    passed = b""
    for piece in pieces:
        passed += cut_up.feed(piece)
    assert passed + cut_up.flush() == rest
    assert (whole.tokens, whole.done, whole.errors) == (cut_up.tokens, cut_up.done, cut_up.errors)
    assert whole.usage == cut_up.usage
    if whole.usage is not None:
        assert len(whole.usage.tool) <= MAX_TOOL
        assert whole.usage.stop in get_args(Stop)


def kept(data: bytes) -> None:
    """Keep the ids of events: as a plain reading of their JSON does, chunk by chunk, too."""
    _, pieces = cut(data)
    most_bytes, strip = 4 * (data[0] % 16) if data else 0, data[:1] < b"\x80"
    plain, native = KeptStream(most_bytes, strip=strip), new_event_stream()
    native.keep(most_bytes, strip=strip)
    for piece in pieces:
        framed = b"%x\r\n%b\r\n" % (len(piece), piece)
        try:
            taken, passed = plain.take(framed, 0), plain.feed(piece)
        except NoJsonError:
            return
        assert native.take(framed, 0) == taken
        assert native.feed(piece) == passed
        assert native.kept == plain.kept


def _seen(stream: EventStream | CompiledStream) -> tuple[object, ...]:
    return (
        *(stream.tokens, stream.usage, stream.held, stream.torn, stream.done, stream.reasoned),
        *(stream.errors, stream.error, stream.is_complete()),
    )


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "request": request,
    "response": response,
    "sse": sse,
    "kept": kept,
}


def seeds(target: str) -> Iterator[bytes]:
    """Yield inputs to begin with: the malformed corpus and what is well formed."""
    if target == "request":
        for case in CORPUS:
            yield b"\x05\x20\x40" + case.data[:1000]
        yield b"\x10\x20\x30" + get(b"Host: a") + post(b"Content-Length: 3", body=b"abc")
        chunked = post(b"Transfer-Encoding: chunked", body=b"3;x=y\r\nabc\r\n0\r\nT: x\r\n\r\n")
        yield b"\x10\x60\x70" + chunked + get(b"Host: a")
    elif target == "response":
        length = len(CHUNKED)
        framed = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
        yield bytes([length, length + len(framed), 0]) + CHUNKED + 2 * framed + b"0\r\n\r\n"
        yield b"\0\0\x20" + b"HTTP/1.1 103 H\r\nA: b\r\n\r\nHTTP/1.1 204 N\r\n\r\n"
        yield b"\0\0\x20" + b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc"
    elif target == "kept":
        prompt = b'"delta":{"role":"assistant"}}],"prompt_token_ids":[1,2],"x":{"y":[{}]}}\n\n'
        call = b'"delta":{"tool_calls":[{"id":"c","function":{"arguments":"{\\"a\\"}"}}]}'
        text = b'"token_ids": [4294967295, 0],"finish_reason": "stop","text":"\\"["}]}\n\n'
        start = b'data: {"choices":[{"index":0,'
        token = b'"delta":{"content":"a"},"token_ids":%b}]}\n\n'
        for first in (0x0F, 0x01, 0x8F):
            yield bytes([first, 0x20, 0x90]) + start + prompt + start + text
            yield bytes([first, 0x60, 0xB0]) + b"".join(
                start + token % ids for ids in (b"[1]", b"[]")
            )
            yield bytes([first, 0x20, 0x90]) + start + call + b"}]}\n\n" + start + text + b"\r\n"
    else:
        yield b"\x10\x20\x30" + EVENT + b": comment\n\n" + EVENT + b"data: [DONE]\n\n"
        yield b"\x10\x20\x30" + b'event: error\r\ndata: {"error":{"message":"x"}}\r\n\r\n'
        call = b'"tool_calls":[{"function":{"name":"Bash"}}]'
        yield b"\x10\x20\x30" + b'data: {"choices":[{"delta":{%b}}]}\n\n' % call
        yield b"\x10\x20\x30" + b'data: {"choices":[{"finish_reason":"tool_calls"}]}\n\n'
        yield b"\x10\x20\x30" + b'event: x\ndata: {"delta":{"stop_reason": "max_tokens"}}\n\n'
        output = b'"status":"completed","output":[{"type":"function_call","name":"f"}]'
        yield b"\x10\x20\x30" + b'event: x\ndata: {"response":{"usage":{},%b}}\n\n' % output
        yield b"\x01\x02\x03" + b'data: {"usage":{"prompt_tokens":7}}\n\ndata: {"error":null}\n\n'
        for first in (0xC8, 0xC1, 0xD3):
            yield bytes([first, 0xE0, 0xFF]) + b"data: {xx" + EVENT + b"\n" + EVENT
        report = b'data: {"usage":{"prompt_tokens":7}}\n\n'
        stops = b'data: {"choices":[{"finish_reason":"stop"}]}\n\n'
        for ends in (b"data: [DONE]\n\n", b": late\n\n", b"data: {\r\n\r\n", b"data: {"):
            yield b"\0\0\0" + report + stops + report + ends
            yield b"\x10\x20\x27" + EVENT + b"\n\n\n" + report + ends + report
