import pytest

from kvmesh.transport.http.upstream.response_head import ResponseHead, StreamHead

DATED = (
    b"HTTP/1.1 200 OK\r\ndate: Sun, 22 Nov 2026 14:20:12 GMT\r\ntransfer-encoding: chunked\r\n\r\n"
)
PLAIN = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("learnt", [DATED, PLAIN])
def test_a_head_is_known_again_whatever_follows_it(learnt: bytes) -> None:
    known = StreamHead(learnt, ResponseHead(200, ()))

    assert known.match(learnt) == len(learnt)
    assert known.match(learnt + b"1\r\na\r\n") == len(learnt)
    assert known.match(learnt[:-1]) == 0
    assert known.match(learnt.replace(b"chunked", b"gzip")) == 0


def test_the_date_alone_may_differ() -> None:
    known = StreamHead(DATED, ResponseHead(200, ()))

    assert known.match(DATED.replace(b"Sun, 22", b"Mon, 23")) == len(DATED)
    assert known.match(DATED.replace(b"Sun, 22", b"Mon,\r\n2")) == 0
    assert known.match(DATED.replace(b" GMT", b"  GMT")) == 0
