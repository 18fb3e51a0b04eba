from kvmesh.app.serve.stream_turn import StreamTurn
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.dispatch.dispatched import Dispatched
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.transport.http.forward.resume import Going
from tests.unit.transport.http.forward.told_events import Asked

HASHES = BlockHashes.of([1, 2, 3], 16)


def request(name: str, expected: int = 0) -> RouteRequest:
    return RouteRequest(name, HASHES, 48, expected_output_tokens=expected)


def turn(
    tokens: bytes | None = b"1234", passed: int = 7
) -> tuple[StreamTurn, Dispatched, list[int]]:
    one = Dispatched(b"q", "q#r-1", streams=True, targets=None, made=request("q#r-1"))
    proceeded: list[int] = []
    going = Going(Asked(), tokens, passed)
    return StreamTurn(one, going, 5.0, lambda: proceeded.append(1)), one, proceeded


def test_who_asks_before_it_is_read_is_called() -> None:
    waiting, one, proceeded = turn()

    assert waiting.is_unread()
    waiting.take(request("other"))

    assert proceeded == [1]
    assert not waiting.is_unread()
    assert one.request.request_id == "q#r-1"
    assert one.unforeseen == "continued"


def test_who_asks_later_need_not_be_called() -> None:
    read, _, proceeded = turn()

    read.take(request("other"))

    assert not read.is_unread()
    assert proceeded == []


def test_the_same_again_is_expected_whole() -> None:
    going, one, _ = turn(tokens=None)

    going.take(request("other", 20))

    assert one.request.expected_output_tokens == 20
    assert one.unforeseen == ""
