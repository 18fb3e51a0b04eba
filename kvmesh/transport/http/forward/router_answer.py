"""What a router answers a meta-router: until its first event another one may answer."""

from typing import Final

from kvmesh._native import EventStream
from kvmesh.transport.http.forward.passed_answer import PassedAnswer
from kvmesh.transport.http.forward.signs import HELD_IN_VAIN, is_sign_of_life
from kvmesh.transport.http.upstream.messages import UpstreamFailure

_UNAVAILABLE: Final = 503


class RouterAnswer(PassedAnswer):
    """The sink of one attempt at a router, which may hold the request: that passes at once."""

    __slots__ = ()

    def _begin(self, data: bytes, stream: EventStream | None) -> bytes:
        """Return what may pass of an answer of which nothing has, but that it is held: not where a
        router has held the request in vain.
        """
        exchange, head = self._exchange, self._head
        if stream is None or head is None:
            return super()._begin(data, stream)
        if stream.errors and HELD_IN_VAIN in stream.error:
            origin = self._target.origin
            text = f"{origin}: held the request in vain"
            failure = UpstreamFailure("mid_response", "status", text, origin, _UNAVAILABLE)
            return b"" if self.owner.try_another(failure) else data
        if not is_sign_of_life(data):
            return data
        if not exchange.started:
            self.early = True
            self._adopt_id(head)
            exchange.pass_head(head.status, head.lines(ours=True), (), None)
        exchange.write(data)
        return b""
