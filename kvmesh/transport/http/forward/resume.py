"""A stream that is cut goes on at another upstream, and its client does not notice.

From its request on a `Resumption` keeps what that takes: the body, and what has passed, counted and
as token ids (`core.chat.kept`). It says how the stream goes on (`core.chat.continuation`); where,
and whether it may, is the plan's to say (`Continues`).
"""

from typing import Final, Protocol, cast

import msgspec

from kvmesh._native import EventStream
from kvmesh.bounds import MAX_TOKENS
from kvmesh.core.chat.continuation import Continuation, go_on
from kvmesh.core.chat.splice import Seen
from kvmesh.core.chat.stream_form import StreamForm, asks_ids, form_of, with_ids
from kvmesh.core.engines.sse import Usage
from kvmesh.transport.http.server.incoming import Incoming
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.upstream.messages import UpstreamFailure

MOST_CONTINUED: Final = 2
"""A stream goes on so many times: what loses three upstreams may be what they die of."""

_IDS_BYTES: Final = 256 * 1024
"""Ids of a stream, besides those of a prompt as long as its body: 64k tokens of answer."""

_CHARGE_BYTES: Final = 16 * 1024
"""What the answer of a stream is expected to take."""

_MOST_KNOWN: Final = 4096
"""Upstreams of which is remembered whether they take a request for token ids."""

_UNREAD: Final = frozenset({400, 422})
"""What an upstream may answer to a field that it does not know."""

_OPENING_BYTES: Final = 4096
_DATA: Final = b"data: "
_BLANK: Final = b"\n\n"
_FALSE: Final = StreamForm("no", why="too much is kept already")


class Going(msgspec.Struct, frozen=True):
    """A stream that may go on: the plan decides whether, and where.

    The request of `exchange` has its body again. `tokens` are prompt and answer so far as packed
    ids, None where they are not known: then the same is asked again. `passed` tokens of its answer
    its client has; `limit` may follow, 0 for as many as fit.
    """

    exchange: Incoming
    tokens: bytes | None
    passed: int
    limit: int


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
    """What all streams of a process keep together: `most` bytes, 0 for nothing.

    `given_up` were too many or too long to be kept; `continued` and `lost` were cut, and went on or
    did not. Upstreams that `give` token ids have done so; those that `refuse` do not take a body
    that asks for them.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0
        self.given_up = 0
        self.continued = 0
        self.lost = 0
        self.gives: set[str] = set()
        self.refuses: set[str] = set()

    def begin(self, request: Request, kind: str) -> "Resumption | None":
        """Return what keeps a stream from its request on; None where nothing is kept."""
        if not self.most:
            return None
        body = request.body
        form = form_of(body, kind)
        charge = 2 * len(body) + _CHARGE_BYTES if form.word != "no" else 0
        if self.used + charge > self.most:
            self.given_up += 1
            form, charge = _FALSE, 0
        self.used += charge
        return Resumption(self, form, kind, body if charge else b"", charge)


class Resumption:
    """One stream, from its request to its end."""

    __slots__ = (
        "_asked", "_body", "_charge", "_form", "_going", "_ids", "_keep", "_kind", "_opening",
        "continued", "cut_s",
    )  # fmt: skip

    def __init__(
        self, keep: StreamKeep, form: StreamForm, kind: str, body: bytes, charge: int
    ) -> None:
        self._keep = keep
        self._form = form
        self._kind = kind
        self._body = body
        self._charge = charge
        self._ids = b'"return_token_ids"' in body and asks_ids(body)
        self._asked = False
        self._opening: bytes | None = None
        self._going: Continuation | None = None
        self.continued = 0
        self.cut_s = 0.0

    @property
    def word(self) -> str:
        """Return what the client may count on now that its upstream is known."""
        form = self._form
        if form.by_ids and (self._asked or self._ids):
            return form.word
        return "exact" if form.again else "no"

    def sent(
        self, path: bytes | None, body: bytes, origin: str, gives_ids: bool
    ) -> tuple[bytes | None, bytes]:
        """Return path and body of the next attempt in place of those that it would have.
        `gives_ids`: its upstream tells token ids.
        """
        going = self._going
        if going is not None and going.body is not None:
            self._asked = True
            return going.path, going.body
        body = body or self._body
        gives = gives_ids and origin not in self._keep.refuses
        self._asked = self._form.by_ids and gives and not self._ids
        return path, with_ids(body) if self._asked else body

    def watch(self, stream: EventStream) -> None:
        """Have what passes of an upstream's stream kept."""
        if self._form.word != "no":
            stream.keep(2 * len(self._body) + _IDS_BYTES, not self._ids)

    def unasked(self, status: int, origin: str) -> bool:
        """Return whether an upstream may have rejected the request for being asked for ids: then it
        is not asked again. One that has taken such a request does not.
        """
        keep = self._keep
        known = origin in keep.gives or origin in keep.refuses
        if status not in _UNREAD or not self._asked or known:
            return False
        if len(keep.refuses) >= _MOST_KNOWN:
            keep.refuses.clear()
        keep.refuses.add(origin)
        return True

    def opened(self, events: bytes, origin: str) -> None:
        """Take what the client is passed first, and who answered."""
        if self._opening is None:
            if self._asked and len(self._keep.gives) < _MOST_KNOWN:
                self._keep.gives.add(origin)
            first = events.partition(_BLANK)[0]
            is_data = first.startswith(_DATA) and len(first) <= _OPENING_BYTES
            self._opening = first[len(_DATA) :] if is_data else b""

    def feed(self, events: bytes) -> bytes:
        """Return what the client gets of another upstream's events. Raises `DivergedError`."""
        return events if self._going is None else self._going.splice.feed(events)

    def cut(
        self, exchange: Incoming, stream: EventStream, failure: UpstreamFailure, plan: object
    ) -> Going | bytes | None:
        """Take that an upstream's stream was cut; return how it goes on, which its plan has agreed
        to, or what is missing of one that lacks its end alone; None: it cannot go on.
        """
        if self._form.word == "no" or stream.torn or stream.is_complete():
            return None
        going = self._going_on(exchange, stream, cast("Continues", plan).cached_tokens)
        if isinstance(going, bytes):
            cast("Continues", plan).lose(failure)
            return going
        went = going is not None and cast("Continues", plan).go_on(failure, going)
        self.continued += failure.stage != "before_send"
        self._keep.continued += went
        self._keep.lost += not went
        return going if went else None

    def _going_on(
        self, exchange: Incoming, stream: EventStream, cached: int | None
    ) -> Going | bytes | None:
        kept = stream.kept
        assert kept is not None, "it was watched"
        seen = Seen(kept, self._opening or b"", cached)
        if self._going is not None:
            seen = self._going.splice.seen(kept)
        going = go_on(self._body, self._kind, self._form, seen)
        if not isinstance(going, Continuation):
            return going
        if self.continued >= MOST_CONTINUED:
            return None
        self._going = going
        exchange.request.body = self._body
        return Going(exchange, going.tokens, len(seen.kept.token_ids) // 4, going.limit)

    def counted(self, usage: Usage | None) -> Usage | None:
        """Return what was reported last as if one upstream had made all of the answer."""
        if usage is None or self._going is None or self._going.tokens is None:
            return usage
        prompt, past = self._going.splice.past
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
        self._body = b""
        self._going = None


def begin_of(events: bytes, data: bytes) -> int:
    """Return where among whole events the one begins that holds `data`."""
    before = events.rfind(_BLANK, 0, max(0, events.find(data)))
    return 0 if before < 0 else before + len(_BLANK)
