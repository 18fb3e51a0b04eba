"""A request's body on its way back to the gateway that streamed it here."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from kvmesh.transport.grpc.extproc_writing import body_answers, trailers_answer
from kvmesh.transport.grpc.stream import GrpcStream

_AT_ONCE: Final = 8
"""Pieces of a body that are made before it is seen whether the gateway takes them."""


class Echo:
    """What goes back on one stream, as fast as the gateway takes it."""

    __slots__ = ("_pieces", "_stream")

    def __init__(self, stream: GrpcStream) -> None:
        self._stream = stream
        self._pieces: Iterator[bytes] | None = None

    def begin(self, answer: bytes, body: bytes, *, trailers: bool) -> None:
        """Send the answer to the headers, then the body; `trailers` came behind it."""
        self._pieces = _pieces(answer, body, trailers=trailers)
        self.go_on()

    def go_on(self) -> None:
        """Send more of it until the gateway takes no more."""
        while self._pieces is not None:
            pieces = tuple(islice(self._pieces, _AT_ONCE))
            if len(pieces) < _AT_ONCE:
                self._pieces = None
            if pieces and not self._stream.send(*pieces):
                return

    def drop(self) -> None:
        """Send no more."""
        self._pieces = None


def _pieces(answer: bytes, body: bytes, *, trailers: bool) -> Iterator[bytes]:
    yield answer
    if body or not trailers:
        yield from body_answers("request", body, end=not trailers)
    if trailers:
        yield trailers_answer("request")
