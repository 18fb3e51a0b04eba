"""What a forwarded exchange asks of router or meta-router, and tells them."""

from collections.abc import Callable
from typing import Final, Protocol, TypeVar, runtime_checkable

import msgspec

from kvmesh.core.engines.sse import Usage
from kvmesh.core.members.answer_check import AnswerCheck, Form
from kvmesh.transport.http.forward.asked import Takers
from kvmesh.transport.http.forward.resume import StreamKeep
from kvmesh.transport.http.server.incoming import Incoming
from kvmesh.transport.http.server.scope import End, Scope
from kvmesh.transport.http.upstream.messages import UpstreamFailure
from kvmesh.transport.http.wire.headers import Header, Headers
from kvmesh.transport.http.wire.problem import Problem

NO_HOLD: Final[Header] = (b"x-kvmesh-wait-for-worker-s", b"0")
"""Of a request that is to be answered 503 at once where no worker can take it: whoever sent it
holds it instead, or knows another bucket.
"""

GROW_TOKENS: Final = 16
"""A plan is told of the first token, and then of so many more."""


class Target(msgspec.Struct, frozen=True, gc=False):
    """Where one attempt goes. `path` and `body` None: as the client sent them.

    `request_id` is what the request is called there, "" by its own id. `headers` replace the
    client's of the same name. `alternatives` are origins that would do as well, the best first,
    where somebody asked for them. `worker` is its name in errors, which tell clients no address.
    `check` judges its answers; None: they are believed. `gives_ids`: it tells the token ids of a
    stream that is asked for them.
    """

    origin: str
    path: bytes | None = None
    headers: Headers = ()
    body: bytes | None = None
    request_id: bytes = b""
    alternatives: tuple[str, ...] = ()
    worker: str = ""
    check: AnswerCheck | None = None
    gives_ids: bool = False


class Wait(msgspec.Struct, frozen=True):
    """No target yet: the plan calls `Forwarding.proceed` when there is one.

    `told` returns for how many seconds more the request is expected to wait, and for how many at
    most; None: nobody knows. What is known of the answer's `headers` is told with that. `quiet`: it
    ends within the client's patience, perhaps with an error: nothing is told before.
    """

    told: Callable[[], tuple[float, float]] | None = None
    headers: Headers = ()
    quiet: bool = False


WAIT: Final = Wait()
QUIET: Final = Wait(quiet=True)


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """How it ended. `status` is what the client got, 0 for nothing.

    finished: all of an upstream's answer was passed on, whatever its status. client_gone: the
    client left. failed: no upstream answered, the client got 502 or 504. cut: the upstream
    (`failure`), or the deadline (None), ended an answer that had begun, or ended it badly. refused:
    the plan gave a `Problem`. crashed: an error of ours; the client got 500, or its answer was
    broken off.
    `error` is the error that an answer of status 200 held or ended with, b"" where it had none.
    `doubted`: what was passed on failed its check, and nobody gave a better answer.
    `watched` False: finished, as far as is known; nobody saw the answer.
    """

    kind: End
    status: int
    attempts: int
    failure: UpstreamFailure | None = None
    error: bytes = b""
    watched: bool = True
    doubted: bool = False


class Forwarding(Protocol):
    """A request on its way, as its plan and those who watch over it see it."""

    @property
    def exchange(self) -> Incoming:
        """Return the request, and the way to answer it."""
        ...

    @property
    def scope(self) -> Scope:
        """Return the request's owner."""
        ...

    @property
    def bound(self) -> str | None:
        """Return the origin that has the request already, whatever the plan had said; None: none.

        Asked after an attempt has failed.
        """
        ...

    def proceed(self) -> None:
        """Ask the plan for the next target: it said `Wait`."""
        ...

    def fail_attempt(self, failure: UpstreamFailure) -> None:
        """Give the present attempt up, unless its answer has begun."""
        ...

    def patience_s(self) -> float:
        """Return for how long its client waits for a byte, by its own headers; infinite: untold."""
        ...

    @property
    def passed(self) -> int:
        """Return how many tokens the present upstream streamed, 0 of another answer."""
        ...

    @property
    def resumable(self) -> str:
        """Return what its client may count on when its upstream is lost in the middle of the
        stream: `core.chat.stream_form.Word`, "" for an answer that is no stream, or is not kept.
        """
        ...

    def hand_over(self, failure: UpstreamFailure) -> None:
        """Have a stream go on elsewhere whose upstream leaves, or is taken for lost; nothing
        happens to one that cannot.
        """
        ...

    def usage(self) -> Usage | None:
        """Return what the upstream reported of its tokens in what has been passed on, if it did.

        For an answer that is no event stream the options must say so.
        """
        ...


class ForwardPlan(Protocol):
    """What router and meta-router decide; called on the event loop, in this order."""

    def next_target(self) -> Target | Problem | Wait | None:
        """Return the next attempt's target, or what to answer; None when nothing is left to try."""
        ...

    def on_attempt_failed(self, failure: UpstreamFailure) -> bool:
        """Learn of an attempt that failed before its answer began; False forbids another (the
        options may forbid it, too).
        """
        ...

    def on_head(self, status: int) -> Headers:
        """Learn that an upstream's answer begins, return headers to add to it.

        Not called for errors made here. When a comment went out before, and with it the head, those
        that begin with `x-kvmesh-` follow as comments (`: x-kvmesh-worker: w0`), the others are
        lost.
        """
        ...

    def on_tokens(self, tokens: int) -> None:
        """Learn how many tokens of an event stream have been passed on: of the first at once, then
        each `GROW_TOKENS` more.
        """
        ...

    def on_finish(self, outcome: Outcome) -> None:
        """Learn the end: called exactly once, on every path."""
        ...


@runtime_checkable
class Booked(Protocol):
    """A plan that books its request."""

    def booked(self) -> str:
        """Return the id of the present attempt's booking."""
        ...

    def note_prefill(self) -> None:
        """Take that its prefill is over, seen otherwise than by a first token."""
        ...


MOST_REFUSED: Final = 64

DEFAULT_RETRY_STATUSES: Final = frozenset({429, 500, 502, 503, 504})


class ForwardOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Retries and deadlines of one exchange.

    `max_retries`: further attempts, only before the client's first byte; upstreams that refuse the
    connection, or have no worker, do not count, up to `MOST_REFUSED` until the plan says `Wait`.
    `max_deaths`: upstreams that may close the connection on this request unanswered; one more and
    it is taken for a request that kills them, unless it is `blameless`: its upstreams are routers.
    `retry_statuses`: answers that mean "ask another", unless a kvmesh router says that it has.
    `reads_usage`: the plan may ask for `usage`, so a whole answer of up to 1 MiB is kept.
    `adopts_id`: a request that its client gave no id goes on without, and has that of its answer:
    upstreams are routers, which give it one, and need not tell apart who asks twice.
    `form` is the API that was asked, "" where an answer of status 200 is believed unseen.
    `deadline_s`: from the start to the last byte. `comments_s`: a client that asked for a stream
    gets its head and then a comment each so many seconds while the first byte is awaited, or each
    third of the time that it says it waits for a byte; the first at once if it is held. `keep`
    keeps what streams need to go on when their upstream is lost; None: none goes on. `usage` are
    the upstreams that take a stream's body that asks for usage, as all then do; None: only those
    do whose clients ask.
    """

    max_retries: int = 2
    max_deaths: int = 1
    blameless: bool = False
    retry_statuses: frozenset[int] = DEFAULT_RETRY_STATUSES
    reads_usage: bool = False
    adopts_id: bool = False
    form: Form = ""
    deadline_s: float | None = None
    comments_s: float | None = None
    keep: StreamKeep | None = None
    usage: Takers | None = None


E_contra = TypeVar("E_contra", bound=Incoming, contravariant=True)


class Startable(Forwarding, Protocol):
    """A request that goes on its way once it has a plan."""

    def begin(self, plan: ForwardPlan, *, stream: bool = False) -> None:
        """Do with the request what `plan` says; never waits.

        `stream`: the client asked for an event stream.
        """
        ...


class Forwarder(Protocol[E_contra]):
    """Makes a request ready to go on its way: to an engine, or as an answer to a gateway."""

    def __call__(self, exchange: E_contra, /, *, options: ForwardOptions) -> Startable:
        """Return its forwarding."""
        ...
