"""One proxied request as a gateway plays it: what it sends, and what the picker answered to it."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Final, cast

import msgspec

from kvmesh_lab.conformance.bodies import PIECE, cut, first_difference
from kvmesh_lab.conformance.case import Broken, UnreachableError, holds
from kvmesh_lab.conformance.link import Call
from kvmesh_lab.conformance.wire import (
    DESTINATION,
    ENDPOINT_SPACE,
    SERVED,
    SUBSET,
    SUBSET_SPACE,
    Answer,
    BodyAnswer,
    Ended,
    Headers,
    HeadersAnswer,
    Modes,
    Refusal,
    Side,
    TrailersAnswer,
    body_message,
    headers_message,
    trailers_message,
)

_ENDPOINT: Final = re.compile(r"(\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-fA-F:.]+\]):(\d{1,5})")
_SHOWN: Final = 120
OK: Final = 200
UNAVAILABLE: Final = 14
"""gRPC's status where no server answers."""


class Asked(msgspec.Struct, frozen=True):
    """A client's request. `subset`: the endpoints that the gateway allows; None for no such entry.

    `repeats_end`: the last piece of the body is sent twice, as some versions of Envoy do.
    """

    path: str = "/v1/chat/completions"
    body: bytes = b""
    method: str = "POST"
    headers: Headers = ()
    trailers: Headers = ()
    piece: int = PIECE
    subset: Sequence[str] | str | None = None
    modes: Modes = Modes()
    repeats_end: bool = False

    def messages(self) -> list[bytes]:
        """Return what a gateway sends for it, in order."""
        headers = [
            (":method", self.method),
            (":path", self.path),
            (":scheme", "http"),
            (":authority", "conformance.test"),
            ("content-type", "application/json"),
            *self.headers,
        ]
        announced = self.modes.request != "NONE"  # a body that there is, but that is not sent
        whole = announced and not self.body and not self.trailers
        metadata: dict[str, Mapping[str, object]] = {}
        if self.subset is not None:
            named = self.subset if isinstance(self.subset, str) else list(self.subset)
            metadata[SUBSET_SPACE] = {SUBSET: named}
        first = headers_message("request", headers, end=whole, modes=self.modes, metadata=metadata)
        if whole or not announced:
            return [first]
        return [first, *rest_of("request", self.body, self.trailers, self.piece, self.repeats_end)]


class Answered(msgspec.Struct, frozen=True):
    """A model server's answer, in the pieces in which it comes."""

    pieces: Sequence[bytes] = ()
    status: int = OK
    headers: Headers = (("content-type", "text/event-stream"),)
    trailers: Headers = ()
    served: str = ""

    def first(self) -> bytes:
        """Return the message with its headers."""
        metadata = {ENDPOINT_SPACE: {SERVED: self.served}} if self.served else {}
        headers = [(":status", str(self.status)), *self.headers]
        whole = not self.pieces and not self.trailers
        return headers_message("response", headers, end=whole, metadata=metadata)

    def rest(self) -> list[bytes]:
        """Return the messages with its body and trailers."""
        made: list[bytes] = []
        for number, piece in enumerate(self.pieces, 1):
            end = number == len(self.pieces) and not self.trailers
            made.append(body_message("response", piece, end=end))
        if self.trailers:
            made.append(trailers_message("response", self.trailers))
        return made


def rest_of(
    side: Side, body: bytes, trailers: Headers, piece: int = PIECE, repeats_end: bool = False
) -> list[bytes]:
    """Return the messages with a body in pieces, then the trailers if there are any."""
    parts = cut(body, piece) if body else []
    made = [
        body_message(side, part, end=number == len(parts) and not trailers)
        for number, part in enumerate(parts, 1)
    ]
    if repeats_end and made:
        made.append(made[-1])
    if trailers:
        made.append(trailers_message(side, trailers))
    return made


class Received:
    """What the picker answered for one side of a request, in order."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.answers: list[Answer] = []
        self.refusal: Refusal | None = None
        self.ended: Ended | None = None
        self.headers: HeadersAnswer | None = None
        self.pieces: list[bytes] = []
        self.finished = False
        """The last piece of the body, or the trailers, have been answered."""
        self.unstreamed = False
        """A piece was answered with no `streamed_response`."""

    def take(self, answer: Answer) -> None:
        """Add an answer. Raises `Broken` for one that is out of order or of the wrong form."""
        self.answers.append(answer)
        if isinstance(answer, Refusal):
            self.refusal = answer
        elif isinstance(answer, Ended):
            self.ended = answer
        else:
            if isinstance(answer, BodyAnswer) and not answer.streamed and self.unstreamed:
                return  # of several that say nothing, the first is enough
            holds(
                answer.side == self.side,
                f"an answer to the {answer.side} came while the {self.side} was processed",
            )
            holds(not self.finished, f"an answer to the {self.side} came after its end: {answer!r}")
            self._take_part(answer)

    def _take_part(self, answer: HeadersAnswer | BodyAnswer | TrailersAnswer) -> None:
        if isinstance(answer, HeadersAnswer):
            holds(self.headers is None, f"the {self.side} headers were answered twice")
            self.headers = answer
            return
        holds(self.headers is not None, f"the {self.side} headers were not answered first")
        if isinstance(answer, TrailersAnswer):
            self.finished = True
            return
        if answer.streamed:
            self.pieces.append(answer.data)
        else:
            self.unstreamed = True
        self.finished = answer.end or not answer.streamed

    @property
    def body(self) -> bytes:
        """Return the body that the gateway passes on."""
        return b"".join(self.pieces)

    def is_done(self, *, whole: bool) -> bool:
        """Return whether nothing else is to be answered; `whole`: headers are all there is."""
        if self.refusal is not None or self.ended is not None or self.finished:
            return True
        return whole and self.headers is not None


async def ask(call: Call, asked: Asked) -> Received:
    """Send a request, and return what was answered once it is complete."""
    received = Received("request")
    messages = asked.messages()
    sending = asyncio.create_task(call.send(*messages))
    try:
        while not received.is_done(whole=len(messages) == 1):
            received.take(await call.receive(waiting_for("the pick", received)))
        if received.refusal is None and received.ended is None:
            await sending
    finally:
        sending.cancel()
    return received


async def answer(call: Call, answered: Answered) -> Received:
    """Send a model server's answer, and return what the picker made of it."""
    received = Received("response")
    rest = answered.rest()
    sending = asyncio.create_task(call.send(answered.first(), *rest))
    try:
        while not received.is_done(whole=not rest):
            received.take(await call.receive(waiting_for("the answer's", received)))
    finally:
        sending.cancel()
    holds(
        received.ended is None,
        f"the picker ended the call before the answer was over: {describe(received.ended)}",
    )
    holds(received.refusal is None, f"the picker replaced an answer: {describe(received.refusal)}")
    return received


def waiting_for(what: str, received: Received) -> str:
    """Return in words what is still to come."""
    if received.headers is None:
        return f"{what} headers"
    return f"{what} body ({sum(map(len, received.pieces))} bytes came)"


def describe(answer: Refusal | Ended | None) -> str:
    """Return a refusal or an end in words."""
    if isinstance(answer, Refusal):
        return f"status {answer.status}, {answer.body[:_SHOWN].decode('utf-8', 'replace')!r}"
    return "nothing" if answer is None else f"gRPC status {answer.code}, {answer.text[:_SHOWN]!r}"


def picked(received: Received) -> tuple[str, ...]:
    """Return the endpoints that were picked, best first. Raises `Broken` for no pick.

    Either of the two places where a pick stands is enough here: `picked_twice` wants both.
    """
    in_header, in_metadata = _places(received)
    value = in_header[0] if in_header else in_metadata
    if value is None:
        raise Broken(f"{DESTINATION} is set neither as header nor in the metadata")
    return tuple(read_endpoint(text) for text in value.split(","))


def picked_twice(received: Received) -> tuple[str, ...]:
    """Return the endpoints that were picked. Raises `Broken` unless both places name them."""
    in_header, in_metadata = _places(received)
    times = len(in_header)
    holds(times == 1, f"the header {DESTINATION} is set {times} times, not once")
    holds(
        in_metadata == in_header[0],
        f"the header says {in_header[0]!r}, the metadata {ENDPOINT_SPACE} {in_metadata!r}",
    )
    return picked(received)


def _places(received: Received) -> tuple[list[str], str | None]:
    holds(received.refusal is None, f"the picker refused: {describe(received.refusal)}")
    if received.ended is not None:
        kind = UnreachableError if received.ended.code == UNAVAILABLE else Broken
        raise kind(f"the picker ended the call: {describe(received.ended)}")
    if received.headers is None:
        raise Broken("the request headers were not answered")
    in_header = [one.value for one in received.headers.set_headers if one.name == DESTINATION]
    space = received.headers.metadata.get(ENDPOINT_SPACE)
    fields: Mapping[str, object] = {}
    if isinstance(space, Mapping):
        fields = cast("Mapping[str, object]", space)
    in_metadata = fields.get(DESTINATION)
    return in_header, None if in_metadata is None else str(in_metadata)


def read_endpoint(text: str) -> str:
    """Return an endpoint as it is written, without spaces. Raises `Broken` for no ip:port."""
    found = _ENDPOINT.fullmatch(text.strip())
    if found is None or not 0 < int(found[2]) <= 0xFFFF:  # noqa: PLR2004  the last port
        raise Broken(f"{text!r} is not of the form ip:port")
    return text.strip()


def same_body(sent: bytes, received: Received) -> str:
    """Return a remark if the body was written anew. Raises `Broken` if its content changed."""
    got = received.body
    holds(
        not received.unstreamed,
        f"a piece of the {received.side} body was answered with no streamed_response: the gateway "
        "passes on an empty body",
    )
    if got == sent:
        return ""
    try:
        before = msgspec.json.decode(sent, type=dict[str, object])
        after = msgspec.json.decode(got, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Broken(f"the body was damaged: {first_difference(sent, got)}") from None
    before.pop("model", None)
    lost = [key for key, value in before.items() if after.get(key) != value]
    holds(not lost, f"the body was rewritten without {lost}")
    return "the picker rewrote the JSON"
