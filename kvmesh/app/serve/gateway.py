"""A router's front door: every request under /v1/ is tokenised, decided, forwarded."""

from typing import Final

import msgspec

from kvmesh.app.front.front import Routes, answer_json
from kvmesh.app.front.viewers import Viewers
from kvmesh.app.prompts.beginning import MOST_READ_BYTES
from kvmesh.app.prompts.reading import Reader, within_patience
from kvmesh.app.prompts.reading_threads import INLINE_ITEMS
from kvmesh.app.serve.disaggregated import DisaggregatedRequest, Sent
from kvmesh.app.serve.quick import QuickRequest
from kvmesh.app.serve.routed import RoutedRequest, take_back
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.bounds import shown
from kvmesh.compiled import NATIVE
from kvmesh.core.admission.access import ROLES_HEADER
from kvmesh.core.dispatch.compiled import CompiledDispatch
from kvmesh.core.engines.registry import ENGINES
from kvmesh.core.insight.explain import choice_for, view_decision
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.disaggregation import SplitOptions
from kvmesh.errors import MODEL_NOT_FOUND, RequestError
from kvmesh.transport.http.forward.forwarding import Forward
from kvmesh.transport.http.forward.plan import ForwardOptions, ForwardPlan
from kvmesh.transport.http.openai import (
    ENDPOINTS,
    ApiEndpoint,
    find_endpoint,
)
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.upstream.client import UpstreamPool

SPLIT_PATHS: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Where engines take a KV transfer's parameters."""


UNSALTED_PATHS: Final = frozenset(path for kind in ENGINES.values() for path in kind.unsalted_paths)
"""Where some kind of engine takes no `cache_salt`."""

_SCANNED: Final = frozenset({"chat", "completions"})

UNREAD: Final = frozenset({429, 503})
"""What a worker says before it begins: safe to ask another, whatever the request would do."""


class Gateway:
    """Serves the OpenAI paths of one router. One call an exchange, never blocking."""

    def __init__(
        self,
        context: RoutingContext,
        reader: Reader,
        pool: UpstreamPool,
        options: ForwardOptions,
        split: SplitOptions,
        viewers: Viewers | None = None,
    ) -> None:
        self._viewers = viewers or Viewers("")
        self._context = context
        self._reader = reader
        self._pool = pool
        self._options = options
        self._once = msgspec.structs.replace(
            options, retry_statuses=options.retry_statuses & UNREAD, max_deaths=0
        )
        self._split = split
        self._compiled = CompiledDispatch(context.routing, reader.root) if NATIVE else None
        if self._compiled is not None:
            self._compiled.tell(context.outbox)

    def mount(self, routes: Routes, *, others: bool = True) -> None:
        """Serve every path under /v1/; without `others` those of `ENDPOINTS` alone."""
        routes.add("POST", "/v1/route", self.explain)
        for path, endpoint in ENDPOINTS.items():
            for method in endpoint.methods:
                routes.add(method, path, self.serve)
        routes.add_prefix("/v1/models/", self.serve)
        routes.add_prefix("/v1/", self.serve if others else _refuse)

    def serve(self, exchange: Exchange) -> None:
        """Forward an inference request to the worker where it costs least."""
        request = exchange.request
        endpoint = ENDPOINTS.get(request.path)
        if endpoint is not None and endpoint.kind in _SCANNED and self._place(exchange, endpoint):
            return
        if endpoint is None or request.method not in endpoint.methods:
            endpoint = find_endpoint(request.method, request.path, passthrough=True)
        if endpoint.kind == "models":
            self._models(exchange)
            return
        if self._viewers.apart:
            self._check_salted(request.path, endpoint)
        self._reader.read(exchange, endpoint, self._forward)

    def _place(self, exchange: Exchange, endpoint: ApiEndpoint) -> bool:
        """Have the compiled core decide a request that wishes nothing unusual, if it can."""
        context, compiled, asked = self._context, self._compiled, exchange.request
        if (
            compiled is None
            or asked.method not in endpoint.methods
            or context.router.prefillers
            or self._viewers.apart
        ):
            return False
        if not compiled.looks and self._reader.looks is None:
            return False  # --watch-prompts
        read = self._reader.scan(asked, chat=endpoint.kind == "chat", looks=compiled.looks)
        if read is None:
            return False
        scanned, packed, head = read
        request_id = exchange.request_id
        name = self._reader.own_name(request_id) if head.named else None
        try:
            placed = compiled.decide(
                scanned, packed, request_id, head.tenant, context.clock(), name
            )
            if placed is None:
                return False
            forwarding = Forward(exchange, self._pool, self._options)
            plan: ForwardPlan = QuickRequest(context, compiled, placed, forwarding)
        except BaseException:
            take_back(context, name or request_id.decode("latin-1"))
            raise
        if context.tracer is not None:
            plan = context.tracer.watch(exchange, plan)
        forwarding.begin(plan, stream=placed.streams)
        return True

    def _check_salted(self, path: str, endpoint: ApiEndpoint) -> None:
        """Raise `RequestError` 403 for a path at which tenants could not be kept apart."""
        why = "this router cannot salt what it does not read" if endpoint.prompt is None else ""
        if path in UNSALTED_PATHS:
            workers = self._context.router.workers()
            names = sorted(one.worker for one in workers if path in one.unsalted)
            if names:
                why = f"the engine of worker {names[0]} takes no cache_salt there"
        if why:
            raise RequestError(
                f"{path:.80} is not served where tenants are kept apart (--tenant-isolation): "
                f"{why}",
                status=403,
            )

    def explain(self, exchange: Exchange) -> None:
        """Answer what would be decided, and why, without sending or booking anything.

        The body is that of a chat or completion; token ids may also come as packed u32,
        or hashes as packed u64 (`application/octet-stream`, see `Reader.read_binary`).
        """
        if exchange.request.header(b"content-type") == b"application/octet-stream":
            self._answer_decision(exchange, self._reader.read_binary(exchange))
            return
        self._reader.read(exchange, None, self._answer_decision)

    def _forward(self, exchange: Exchange, request: RouteRequest) -> None:
        context = self._context
        options = self._options if exchange.request.path in ENDPOINTS else self._once
        if request.timeout_s is not None:
            options = within_patience(options, request.timeout_s)
        forwarding = Forward(exchange, self._pool, options)
        routed = RoutedRequest(context, request, forwarding)
        plan: ForwardPlan = routed
        if context.router.prefillers and _may_split(exchange, request):
            plan = self._split_plan(exchange, request, routed)
        if context.tracer is not None:
            plan = context.tracer.watch(exchange, plan)
        if exchange.request.header(ROLES_HEADER) is not None:
            plan = self._viewers.veil(exchange.request, plan)
        forwarding.begin(plan, stream=request.streams)

    def _split_plan(
        self, exchange: Exchange, request: RouteRequest, decode: RoutedRequest
    ) -> DisaggregatedRequest:
        """Return the plan of a request that may be prefilled on one worker, decoded on another."""
        asked = exchange.request
        headers = [(b"x-request-id", exchange.request_id)]
        headers += [one for one in asked.headers if one[0] == b"authorization"]
        sent = Sent(asked.path, asked.body, tuple(headers))
        return DisaggregatedRequest(self._context, request, decode, sent, self._pool, self._split)

    def _answer_decision(self, exchange: Exchange, request: RouteRequest) -> None:
        context = self._context
        now, scheduler = context.clock(), context.scheduler
        decision = scheduler.explain(request, now)
        left_out = scheduler.workers.left_out(request, now)
        _, forecast = scheduler.lengths.forecast(request.hashes)
        router, bucket = context.router_id, context.bucket
        view = view_decision(
            decision, router=router, bucket=bucket, forecast=forecast, left_out=left_out
        )
        answer_json(exchange, choice_for(view, self._viewers.of(exchange.request)))

    def _models(self, exchange: Exchange) -> None:
        models = [
            {"id": model, "object": "model", "created": 0, "owned_by": "kvmesh"}
            for model in self._context.router.models()
        ]
        path = exchange.request.path
        if path == "/v1/models":
            answer_json(exchange, {"object": "list", "data": models})
            return
        wanted = path.removeprefix("/v1/models/")
        for model in models:
            if model["id"] == wanted:
                answer_json(exchange, model)
                return
        raise RequestError(
            f"the model {shown(wanted)} does not exist: no worker serves it",
            status=404,
            param="model",
            code=MODEL_NOT_FOUND,
        )


def _refuse(exchange: Exchange) -> None:
    path = exchange.request.path
    raise RequestError(f"{path} is not served here: --other-paths is refuse", status=404)


def _may_split(exchange: Exchange, request: RouteRequest) -> bool:
    """Return whether prefill and decode may be on two workers: one prompt, one answer, and a body
    that is rewritten on the event loop within some 10 ms.
    """
    asked = exchange.request
    short = len(asked.body) <= MOST_READ_BYTES and asked.items <= INLINE_ITEMS
    return asked.path in SPLIT_PATHS and request.choices == 1 and short
