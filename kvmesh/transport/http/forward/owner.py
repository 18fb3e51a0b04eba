"""The forwarding, as the sinks of its upstream calls see it."""

from typing import Protocol

from kvmesh._native import EventStream
from kvmesh.transport.http.forward.asked import AskedUsage
from kvmesh.transport.http.forward.plan import ForwardOptions, ForwardPlan, Target, Wait
from kvmesh.transport.http.forward.resume import Resumption
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.upstream.client import UpstreamCall
from kvmesh.transport.http.upstream.messages import UpstreamFailure, UpstreamSink
from kvmesh.transport.http.wire.deadlines import ForwardClock
from kvmesh.transport.http.wire.problem import Problem


class Owner(Protocol):
    """Whose answer it is. `plan` decides where its request goes, `resumption` keeps its stream,
    `asks` has its usage told, None where nothing does; `unnamed`: its client gave it no id, and it
    has that of its answer. `call` is at the present upstream, None once that has ended; `clock`
    keeps its times, None where it has none any more.
    """

    asks: AskedUsage | None
    call: UpstreamCall | None
    clock: ForwardClock | None
    exchange: Exchange
    options: ForwardOptions
    plan: ForwardPlan
    resumption: Resumption | None
    unnamed: bool

    def send(
        self, target: Target | Problem | Wait | None, sink: UpstreamSink | None = None
    ) -> None:
        """Send the request to `target`, whose answer goes to `sink`, None: a new one; or do what
        the plan says instead.
        """
        ...

    def cancel(self) -> None:
        """Give the present upstream up."""
        ...

    def try_another(self, failure: UpstreamFailure) -> bool:
        """Send the request to another upstream if it may be, and there is one."""
        ...

    def give_up(self, failure: UpstreamFailure | None) -> None:
        """Answer that nobody gave an answer: the last one failed so, None: there was none."""
        ...

    def refuse_redirect(self, status: int) -> None:
        """Answer in place of a redirect."""
        ...

    def go_on(self, failure: UpstreamFailure, before: bytes = b"") -> bool:
        """Have another upstream go on with a stream, part of which the client has, when it has got
        what is `before` the loss; return whether it does, or nothing was missing but its end.
        """
        ...

    def take_up(self, stream: EventStream) -> UpstreamSink:
        """Return what passes `stream` on, which comes, as the rest of one that its client lost."""
        ...

    def fail(self, failure: UpstreamFailure) -> None:
        """Try another upstream than the one that failed, or tell the client."""
        ...

    def complete(self, data: bytes) -> None:
        """Pass the last bytes of a stream on that has gone on: the answer is whole."""
        ...

    def end_cut(self, failure: UpstreamFailure, worker: str) -> None:
        """Break off a stream that its upstream has failed, or complete it if it lacks its end."""
        ...

    def end_badly(self, failure: UpstreamFailure) -> None:
        """End a stream, part of which the client has, behind one error event."""
        ...
