"""A stream that is cut goes on at another upstream, and its client does not notice.

From its request on a `Resumption` keeps what that takes: the body, and what has passed, counted and
as token ids (`core.chat.kept`). It says how the stream goes on (`core.chat.continuation`); where,
and whether it may, is the plan's to say (`Continues`).
"""

from typing import Final, Protocol, cast

import msgspec

from kvmesh._native import EventStream, Names
from kvmesh.bounds import MAX_TOKENS
from kvmesh.core.chat.continuation import Continuation, go_on, way_of
from kvmesh.core.chat.kept import Kept
from kvmesh.core.chat.named_streams import NamedStreams
from kvmesh.core.chat.splice import Seen, names_in
from kvmesh.core.chat.stream_form import (
    StreamForm,
    asks_ids,
    form_of,
    without_ids,
    without_prompt,
)
from kvmesh.core.engines.sse import Usage
from kvmesh.core.members.poison_guard import key_of
from kvmesh.transport.http.forward.asked import AskedField, Takers
from kvmesh.transport.http.server.incoming import Incoming
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.upstream.messages import UpstreamFailure

MOST_CONTINUED: Final = 2
"""A stream goes on behind so many losses: what loses three upstreams may be what they die of."""

_IDS_BYTES: Final = 256 * 1024
"""Ids of a stream, besides those of a prompt as long as its body: 64k tokens of answer."""

_CHARGE_BYTES: Final = 16 * 1024
"""What the answer of a stream is expected to take."""

STREAM_ID: Final = b"x-kvmesh-stream-id"
"""By what its client calls a stream, to ask for the rest where it loses it."""

STREAMS_PATH: Final = "/v1/streams/"
"""Where it asks, followed by that name."""

_NAMED: Final = Names((STREAM_ID,), b"")
_THICK_BYTES: Final = 4096
"""Of a body that is longer the prompt is not kept twice."""

_OPENING_BYTES: Final = 4096
_DATA: Final = b"data: "
_BLANK: Final = b"\n\n"
_FALSE: Final = StreamForm("no", why="too much is kept already")
_LOST: Final = StreamForm("no", why="its upstream was lost")


class Going(msgspec.Struct, frozen=True):
    """A stream that may go on: the plan decides whether, and where.

    The request of `exchange` has its body again. `tokens` are prompt and answer so far as packed
    ids, None where they are not known: then the same is asked again. `passed` tokens of its answer
    its client has.
    """

    exchange: Incoming
    tokens: bytes | None
    passed: int


class Continues(Protocol):
    """A plan whose streams may go on elsewhere."""

    @property
    def cached_tokens(self) -> int | None:
        """Return what its upstream is taken to have found cached of the prompt; None: unknown."""
        ...

    def lose(self, failure: UpstreamFailure) -> None:
        """Take that the upstream was lost with all but the end of its answer, which ends whole."""
        ...

    def go_on(self, failure: UpstreamFailure, going: Going) -> bool:
        """Take that the upstream was lost in the middle of its answer; return whether another one
        is to go on. Then `next_target` says which.
        """
        ...


class StreamKeep:
    """What all streams of a process keep together: `most` bytes, 0 for nothing; of streams that
    their clients `named` another quarter of it, behind their end.

    `given_up` were too many or too long to be kept; `continued` and `lost` were cut, and went on or
    did not; `resumed` were asked for by clients that had lost them. `ids` are the upstreams that
    take a body that asks for token ids.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0
        self.given_up = 0
        self.continued = 0
        self.lost = 0
        self.resumed = 0
        self.named = NamedStreams(most // 4)
        self.ids = Takers()

    def begin(self, request: Request, kind: str) -> "Resumption | None":
        """Return what keeps a stream from its request on; None where nothing is kept."""
        if not self.most:
            return None
        body = request.body
        form = form_of(body, kind)
        charge = self._charge(body) if form.word != "no" else 0
        if not charge and form.word != "no":
            form = _FALSE
        return Resumption(self, form, kind, body if charge else b"", charge)

    def resume(
        self, body: bytes, kind: str, form: StreamForm, opening: bytes, going: Continuation
    ) -> "Resumption | None":
        """Return what keeps a stream that its client asks for again, and that is `going` on; None
        where too much is kept already.
        """
        charge = self._charge(body)
        if not charge:
            return None
        self.resumed += 1
        resumption = Resumption(self, form, kind, body, charge)
        resumption.take_up(opening, going)
        return resumption

    def _charge(self, body: bytes) -> int:
        """Count in what a stream with this body may take; return it, 0 where that is too much."""
        charge = 2 * len(body) + _CHARGE_BYTES
        if self.used + charge > self.most:
            self.given_up += 1
            return 0
        self.used += charge
        return charge


class Resumption(AskedField):
    """One stream, from its request to its end; token ids are asked for. `going`: how what its
    client has goes on, None while all of it comes from one upstream.
    """

    __slots__ = (
        "_charge", "_ids", "_keep", "_key",
        "_kind", "_opening", "_stream", "body", "continued", "form", "going", "marking",
        "thick",
    )  # fmt: skip

    def __init__(
        self, keep: StreamKeep, form: StreamForm, kind: str, body: bytes, charge: int
    ) -> None:
        # As `AskedField` begins, without a call more for each stream.
        self._takers = keep.ids
        self._asked = False
        self._doubted = ""
        self._keep = keep
        self.form = form
        self._kind = kind
        self.body = body
        self._charge = charge
        self._ids = b'"return_token_ids"' in body and asks_ids(body)
        self._key = b""
        self._opening: bytes | None = None
        self.going: Continuation | None = None
        self._stream: EventStream | None = None
        self.continued = 0
        self.thick = form.by_ids and len(body) > _THICK_BYTES
        self.marking = False

    @property
    def key(self) -> bytes:
        """Return what the request's body is known by, b"" where nothing is kept."""
        return self._key or (key_of(self.body) if self.body else b"")

    def thin(self, stream: EventStream) -> None:
        """Let go of a long prompt's text if its ids are kept, once some of the answer has passed:
        it goes on by them alone, and is asked again no more.
        """
        kept = stream.kept
        if kept is None or not (kept.content_bytes or kept.lost):
            return
        self.thick = False
        if way_of(self.form, kept) != "ids":
            return
        thin = without_prompt(self.body)
        self._key = key_of(self.body)
        self._charge -= len(self.body) - len(thin)
        self._keep.used -= len(self.body) - len(thin)
        self.body = thin
        self.form = msgspec.structs.replace(self.form, again=False)

    @property
    def word(self) -> str:
        """Return what the client may count on now that its upstream is known."""
        form = self.form
        if form.by_ids and (self._asked or self._ids):
            return form.word
        return "exact" if form.again else "no"

    def take_up(self, opening: bytes, going: Continuation) -> None:
        """Go on with a stream that its client has lost."""
        self._opening = opening
        self.going = going

    def seen(self) -> Seen | None:
        """Return what has passed until now; None before anything has, and where none is kept."""
        stream, going = self._stream, self.going
        if stream is None and going is not None and going.tokens is not None:
            return going.splice.seen(Kept())
        if stream is None or stream.kept is None or self._opening is None:
            return None
        return self._seen(stream, None)

    def sent(
        self, path: bytes | None, body: bytes, origin: str, gives_ids: bool
    ) -> tuple[bytes | None, bytes, bool]:
        """Return path and body of the next attempt in place of those that it would have, and
        whether the body is to ask for ids besides. `gives_ids`: its upstream tells token ids.
        """
        going, refuses = self.going, self._takers.refuses
        if going is not None and going.body is not None:
            self._asked = origin not in refuses
            return going.path, going.body if self._asked else without_ids(going.body), False
        gives = gives_ids and origin not in refuses
        self._asked = self.form.by_ids and gives and not self._ids
        return path, body or self.body, self._asked

    def watch(self, stream: EventStream) -> None:
        """Have what passes of an upstream's stream kept."""
        if self.form.word != "no":
            stream.keep(2 * len(self.body) + _IDS_BYTES, not self._ids, self.marking)
            self._stream = stream

    def opened(self, events: bytes, origin: str) -> None:
        """Take what the client is passed first, and who answered."""
        if self._opening is None:
            if self._asked and origin not in self._takers.gives:
                self._takers.gave(origin)
            # Behind what a router told while the request waited.
            begin = events.find(b"\n" + _DATA) + 1 if events.startswith(b":") else 0
            first = events[begin:].partition(_BLANK)[0]
            data = first[len(_DATA) :] if first.startswith(_DATA) else b""
            self._opening = names_in(data) if len(data) > _OPENING_BYTES else data

    def feed(self, events: bytes) -> bytes:
        """Return what the client gets of another upstream's events. Raises `DivergedError`."""
        return events if self.going is None else self.going.splice.feed(events)

    def cut(
        self,
        exchange: Incoming,
        stream: EventStream,
        failure: UpstreamFailure,
        plan: object,
        *,
        poison: bool,
    ) -> Going | bytes | None:
        """Take that an upstream's stream was cut; return how it goes on, which its plan has agreed
        to, or what is missing of one that lacks its end alone; None: it cannot go on, and if its
        upstream was lost it never will. `poison`: this very request ends its upstreams.
        """
        ended = stream.is_complete() and not stream.errors
        if self.form.word == "no" or stream.torn or ended:
            return None
        seen = self._seen(stream, cast("Continues", plan).cached_tokens)
        going = go_on(self.body, self._kind, self.form, seen)
        lost = failure.kind != "left"
        if isinstance(going, bytes):
            if not lost:
                return None  # its end comes
            cast("Continues", plan).lose(failure)
            return going
        if going is not None and not (lost and (poison or self.continued >= MOST_CONTINUED)):
            exchange.request.body = self.body
            if exchange.request.header(STREAM_ID) is not None:
                exchange.request.change_headers(_NAMED, ())  # what goes on is not begun anew
            asked = Going(exchange, going.tokens, len(seen.kept.token_ids) // 4)
            if cast("Continues", plan).go_on(failure, asked):
                self._keep.continued += 1
                self.continued += lost and failure.stage != "before_send"
                self.going = going
                return asked
        if lost:
            self._keep.lost += 1
            self.form = _LOST
        return None

    def _seen(self, stream: EventStream, cached: int | None) -> Seen:
        """Return what the client has of all upstreams until now."""
        kept = stream.kept
        assert kept is not None, "it was watched"
        if self.going is not None:
            return self.going.splice.seen(kept)
        return Seen(kept, self._opening or b"", cached)

    def counted(self, usage: Usage | None) -> Usage | None:
        """Return what was reported last as if one upstream had made all of the answer."""
        if usage is None or self.going is None or self.going.tokens is None:
            return usage
        prompt, past = self.going.splice.past
        return msgspec.structs.replace(
            usage,
            prompt_tokens=prompt,
            completion_tokens=min(MAX_TOKENS, past + usage.completion_tokens),
            cached_tokens=None,
        )

    def over(self) -> None:
        """Let go of what was kept."""
        self._keep.used -= self._charge
        self._charge = 0
        self.body = b""
        self.going = self._stream = None


def begin_of(events: bytes, data: bytes) -> int:
    """Return where among whole events the one begins that holds `data`."""
    before = events.rfind(_BLANK, 0, max(0, events.find(data)))
    return 0 if before < 0 else before + len(_BLANK)
