"""WebSockets through a meta-router: each is opened at a replica of its bucket."""

from functools import partial

from kvmesh.actors.meta_router import MetaRouter
from kvmesh.app.front.tracing import Tracer
from kvmesh.app.front.websockets import is_websocket, why_no_websocket
from kvmesh.app.members.failure_care import FailureCare
from kvmesh.app.meta.bucket_plan import BucketPlan
from kvmesh.app.meta.bucket_reader import BucketReader
from kvmesh.app.serve.request_ends import RequestEnds
from kvmesh.transport.http.forward.plan import ForwardOptions
from kvmesh.transport.http.forward.websocket import WebSocketForward
from kvmesh.transport.http.openai import query_model
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.upstream.client import UpstreamPool


class BucketSockets:
    """Opens them as `BucketPlan` says."""

    def __init__(
        self,
        meta: MetaRouter,
        reader: BucketReader,
        options: ForwardOptions,
        care: FailureCare,
        ends: RequestEnds,
    ) -> None:
        self._reader = reader
        self._options = options
        self._plan = partial(BucketPlan, meta, care=care, ends=ends)

    def serve(self, exchange: Exchange, pool: UpstreamPool, tracer: Tracer | None) -> bool:
        """Open a WebSocket or say why not; False: the request asks for none."""
        request = exchange.request
        if not is_websocket(request):
            return False
        if (problem := why_no_websocket(request)) is not None:
            exchange.fail(problem)
            return True
        wanted = self._reader.read_other(request, query_model(request.query))
        if tracer is not None:
            tracer.begin(exchange)
        forwarding = WebSocketForward(exchange, pool, self._options)
        forwarding.begin(self._plan(request=wanted, forwarding=forwarding))
        return True
