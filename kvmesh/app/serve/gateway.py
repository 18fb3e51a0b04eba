"""A router's front door: every request under /v1/ is tokenised, decided, forwarded."""

from functools import partial
from typing import Final, Generic, TypeVar

import msgspec

from kvmesh._native import Placed
from kvmesh.app.front.front import PathRoutes, answer_json
from kvmesh.app.front.models_page import ModelsPage
from kvmesh.app.front.viewers import Viewers
from kvmesh.app.front.websockets import is_websocket, why_no_websocket
from kvmesh.app.prompts.beginning import MOST_READ_BYTES
from kvmesh.app.prompts.reading import Readable, Reader
from kvmesh.app.prompts.reading_parts import by_path, within_patience
from kvmesh.app.prompts.reading_threads import INLINE_ITEMS
from kvmesh.app.serve.disaggregated import DisaggregatedRequest
from kvmesh.app.serve.fetching import Fetching
from kvmesh.app.serve.going_home import GoingHome, is_kept_apart
from kvmesh.app.serve.placed_turns import begin_turn, bound_turn, may_pass
from kvmesh.app.serve.prefill import Sent, Splits
from kvmesh.app.serve.resumed import checked_name
from kvmesh.app.serve.routed import RoutedRequest
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.admission.access import ROLES_HEADER
from kvmesh.core.chat.stream_form import form_of
from kvmesh.core.dispatch.dispatched import Dispatched, at_once
from kvmesh.core.dispatch.placing import Placer
from kvmesh.core.engines.registry import ENGINES
from kvmesh.core.insight.explain import choice_for, view_decision
from kvmesh.core.programs.standing import outlook
from kvmesh.core.routing.choice.split_forms import why_whole
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.errors import RequestError
from kvmesh.transport.http.forward.plan import (
    Forwarder,
    ForwardOptions,
    ForwardPlan,
    Startable,
)
from kvmesh.transport.http.forward.resume import STREAM_ID
from kvmesh.transport.http.openai import (
    ENDPOINTS,
    OTHERS,
    PASSTHROUGH,
    ApiEndpoint,
    find_endpoint,
    may_repeat,
    prompt_endpoint,
    query_model,
)
from kvmesh.transport.http.server.incoming import E, Incoming
from kvmesh.transport.http.server.request import Request

SPLIT_PATHS: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Where engines take a KV transfer's parameters."""


UNSALTED_PATHS: Final = frozenset(path for kind in ENGINES.values() for path in kind.unsalted_paths)
"""Where some kind of engine takes no `cache_salt`."""

_PARAMS: Final = b"kv_transfer_params"
"""A body that says something of transfers itself is left as it is."""

_SCANNED: Final = frozenset({"chat", "completions"})

UNREAD: Final = frozenset({429, 503})
"""What a worker says before it begins: safe to ask another, whatever the request would do."""

V = TypeVar("V", bound=Incoming)  # one kind of requests at which only views are served


class Gateway(Generic[E]):
    """Serves the OpenAI paths of one router. One call an exchange, never blocking.

    `forward` makes what sends a request where it is decided, `sockets` what opens a WebSocket
    there; None: such a request is sent as any other.
    """

    def __init__(
        self,
        context: RoutingContext,
        reader: Reader,
        forward: Forwarder[E],
        options: ForwardOptions,
        splits: Splits,
        viewers: Viewers | None = None,
    ) -> None:
        self.sockets: Forwarder[E] | None = None
        self._viewers = viewers or Viewers("")
        self._context = context
        self._models = ModelsPage(context.router.models, self._urls, splits.pool)
        self._reader = reader
        self._forward = forward
        self._options = by_path(options)
        self._others = options
        self._once = msgspec.structs.replace(
            options, retry_statuses=options.retry_statuses & UNREAD, max_deaths=0
        )
        self._splits = splits
        self._homes = GoingHome[E](context, splits.pool, self._viewers, self._send)
        self._placer = Placer(context.routing)
        context.routing.publish_to(context.outbox)
        context.again.read = reader.read_again

    def mount(self, routes: PathRoutes[E]) -> None:
        """Serve every path under /v1/ and `OTHERS`."""
        for path, endpoint in ENDPOINTS.items():
            for method in endpoint.methods:
                routes.add(method, path, self.serve)
        self.mount_views(routes)
        for path, endpoint in OTHERS.items():
            for method in endpoint.methods:
                routes.add(method, path, self.serve)
        routes.add_prefix("/v1/", self.serve)

    def mount_unread(self, routes: PathRoutes[E]) -> None:
        """Serve the same paths for requests of which only the head is known."""
        for path, endpoint in (*ENDPOINTS.items(), *OTHERS.items()):
            for method in endpoint.methods:
                routes.add(method, path, self.serve_unread)
        self.mount_views(routes)
        routes.add_prefix("/v1/", self.serve_unread)

    def mount_views(self, routes: PathRoutes[V]) -> None:
        """Serve what tells and sends nothing: where a request would go, which models there are."""
        routes.add("POST", "/v1/route", self.explain)
        routes.add("GET", "/v1/models", self._show_models)
        routes.add_prefix("/v1/models/", self._show_models)

    def serve(self, exchange: E) -> None:
        """Forward an inference request to the worker where it costs least."""
        request = exchange.request
        endpoint = ENDPOINTS.get(request.path)
        if endpoint is None or request.method not in endpoint.methods:
            endpoint = find_endpoint(request.method, request.path, passthrough=True)
        if self._viewers.apart and not is_kept_apart(request):
            self._check_salted(request.path, endpoint)
        if (name := request.head.get(STREAM_ID)) is not None:
            checked_name(name)
        if endpoint.kind in _SCANNED and self._serve_scanned(exchange, endpoint):
            return
        if endpoint is PASSTHROUGH and self.sockets is not None and is_websocket(request):
            if (problem := why_no_websocket(request)) is not None:
                exchange.fail(problem)
            else:
                self._reader.read(exchange, endpoint, self._open_socket)
            return
        self._reader.read(exchange, endpoint, self._homes.begin)

    def _show_models(self, exchange: Incoming) -> None:
        find_endpoint(exchange.request.method, exchange.request.path, passthrough=False)
        self._models.serve(exchange)

    def serve_unread(self, exchange: E) -> None:
        """Have a request sent whose body nobody tells: by the load of workers, and its headers."""
        if self._viewers.apart:
            self._check_salted(exchange.request.path, PASSTHROUGH)
        self._reader.read(exchange, PASSTHROUGH, self._homes.begin)

    def _serve_scanned(self, exchange: E, endpoint: ApiEndpoint) -> bool:
        """Have a request sent by what is scanned of its body; False: it has to be read."""
        context, placer, asked = self._context, self._placer, exchange.request
        if context.router.prefillers or context.router.wanting or self._splits.always:
            return False
        read = self._reader.scan(
            asked, chat=endpoint.kind == "chat", uses_caches=placer.uses_caches
        )
        now = context.clock()
        if read is None:
            return False
        request_id, wishes = exchange.request_id, read.wishes
        name = self._reader.own_name(request_id) if wishes.named else None
        placed = None
        if may_pass(context, read, asked.body, now):
            try:
                placed = self._placer.decide(read.asked, request_id, wishes, now, name)
                if placed is not None and not isinstance(placed, int | float):
                    self._begin_placed(exchange, read, placed, now)
                    return True
            except BaseException:
                context.take_back(name or request_id.decode("latin-1"))
                raise
        request = self._reader.request_of(read, name or request_id.decode("latin-1"))
        held = placed is not None
        if request is not None:
            self._replace_body(exchange, read)
            self._send(exchange, request, tried=held)
        elif held:
            self._reader.read(exchange, endpoint, self._hold)
        return request is not None or held

    def _begin_placed(self, exchange: E, read: Readable, placed: Placed, now: float) -> None:
        """Begin to forward what was placed as it was scanned."""
        context, wishes = self._context, read.wishes
        turn = begin_turn(context, read, placed, now)
        if read.asked.scanned.body is not exchange.request.body:
            self._replace_body(exchange, read)
        self._begin(exchange, at_once(placed, wishes, turn), wishes.timeout_s)

    def _replace_body(self, exchange: E, read: Readable) -> None:
        """Have the body sent that was salted, if it was."""
        if (body := read.asked.scanned.body) is not exchange.request.body:
            exchange.request.replace_body(body)

    def _urls(self) -> set[str]:
        return {one.url for one in self._context.router.workers()}

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
                f"{path:.80} is not served where tenants are kept apart (--tenant-secret-file): "
                f"{why}",
                status=403,
            )

    def explain(self, exchange: Incoming) -> None:
        """Answer what would be decided, and why, without sending or booking anything.

        The body is that of a chat or completion; token ids may also come as packed u32,
        or hashes as packed u64 (`application/octet-stream`, see `Reader.read_binary`).
        """
        if exchange.request.header(b"content-type") == b"application/octet-stream":
            self._answer_decision(exchange, self._reader.read_binary(exchange))
            return
        self._reader.read(exchange, None, self._answer_read)

    def _answer_read(self, exchange: Incoming, request: RouteRequest) -> None:
        """Answer what would be decided of a JSON body, and whether its stream could go on."""
        body, resumable = exchange.request.body, ""
        if request.streams and self._context.counters.streams.most:
            resumable = form_of(body, prompt_endpoint(body).kind).in_words()
        self._answer_decision(exchange, request, resumable)

    def _hold(self, exchange: E, request: RouteRequest) -> None:
        """Have a request wait that could not go just now."""
        self._send(exchange, request, tried=True)

    def _send(self, exchange: E, request: RouteRequest, *, tried: bool = False) -> None:
        """Have a request sent that was read whole. `tried`: it could not go just now."""
        context = self._context
        if context.gate.follows and request.turn is None:
            request = context.routing.turns.follow(request, context.clock())
        request = bound_turn(context, request, exchange)
        if context.workers.fetchers and self._may_name_source(exchange):
            request = msgspec.structs.replace(request, names_source=True)
        one = context.routing.enter(request, exchange.request_id)
        one.tried = tried
        self._begin(exchange, one, request.timeout_s)

    def _begin(self, exchange: E, one: Dispatched, timeout_s: float | None) -> None:
        """Begin to forward a request, placed or not."""
        context, asked = self._context, exchange.request
        options = self._once
        if one.placed is not None or may_repeat(asked):
            options = self._options.get(asked.path, self._others)
        if timeout_s is not None:
            options = within_patience(options, timeout_s)
        if context.keep is not None:
            context.keep(one, asked)
        if context.texts is not None:
            context.texts.offer(asked.body, one.known_hashes, context.clock())
        if context.tracer is not None:
            context.tracer.begin(exchange)
        forwarding = self._forward(exchange, options=options)
        routed = RoutedRequest(context, one, forwarding)
        plan: ForwardPlan = routed
        if one.placed is None:
            plan = self._plan_of(exchange, one.request, routed)
        if asked.head.get(ROLES_HEADER) is not None and self._viewers.hides(asked):
            one.veiled = True
        forwarding.begin(plan, stream=one.streams)
        if one.streams and (name := asked.head.get(STREAM_ID)) is not None:
            self._name(exchange, forwarding, name.decode())

    def _open_socket(self, exchange: E, request: RouteRequest) -> None:
        """Have a WebSocket opened by load, among the workers of the model that its query names."""
        context, forward = self._context, self.sockets
        assert forward is not None, "it was asked before"
        if model := query_model(exchange.request.query):
            request = msgspec.structs.replace(request, model=model)
        if context.tracer is not None:
            context.tracer.begin(exchange)
        forwarding = forward(exchange, options=self._others)
        one = context.routing.enter(request, exchange.request_id)
        routed = RoutedRequest(context, one, forwarding)
        forwarding.begin(routed)
        if not exchange.scope.over and routed.one.placed is not None:
            context.sockets.open[routed] = None
            exchange.scope.held.append(partial(context.sockets.open.pop, routed, None))

    def _name(self, exchange: E, forwarding: Startable, name: str) -> None:
        """Have the stream's progress told, so that its client may ask for the rest of it."""
        named, resumption = self._context.named, getattr(forwarding, "resumption", None)
        if named is not None and resumption is not None:
            named.begin(exchange, resumption, named.key_of(exchange.request, name))

    def _plan_of(self, exchange: E, request: RouteRequest, routed: RoutedRequest) -> ForwardPlan:
        """Return the plan of a request that may be sent to two workers, or told where to fetch."""
        if request.names_source:
            routed.fetching = Fetching(self._context.router.heartbeats, exchange.request.body)
            return routed
        splits = self._context.router.prefillers or self._splits.always
        if splits and exchange.request.path in SPLIT_PATHS:
            return self._split_plan(exchange, request, routed)
        return routed

    def _may_name_source(self, exchange: E) -> bool:
        """Return whether a request's body may be given a source to fetch its prefix from; where
        there are prefill workers, what they share with decode workers stands there.
        """
        asked, prefillers = exchange.request, self._context.router.prefillers
        free = asked.path in SPLIT_PATHS and not prefillers and _PARAMS not in asked.body
        return free and not _why_whole(asked)

    def _split_plan(self, exchange: E, request: RouteRequest, decode: RoutedRequest) -> ForwardPlan:
        """Return the plan of a request that may be prefilled on one worker, decoded on another."""
        asked, headers = exchange.request, [(b"x-request-id", exchange.request_id)]
        headers += [one for one in asked.headers if one[0] == b"authorization"]
        sent = Sent(asked.path, asked.body, tuple(headers), _why_whole(asked))
        divide = self._splits.divide or DisaggregatedRequest
        return divide(self._context, request, decode, sent, self._splits)

    def _answer_decision(
        self, exchange: Incoming, request: RouteRequest, resumable: str = ""
    ) -> None:
        context = self._context
        now, scheduler = context.clock(), context.scheduler
        if context.workers.fetchers and not context.router.prefillers:
            request = msgspec.structs.replace(request, names_source=True)
        decision = scheduler.explain(request, now)
        left_out = scheduler.workers.left_out(request, now)
        _, forecast = scheduler.lengths.forecast(request.hashes)
        router, bucket = context.router_id, context.bucket
        view = view_decision(
            decision, router=router, bucket=bucket, forecast=forecast, left_out=left_out
        )
        request = bound_turn(context, request, exchange)
        governor, turn = context.routing.turns.governor, request.turn
        if context.gate.follows:
            turn = context.routing.turns.check(request, now)
        if governor is not None and turn is not None:
            view = msgspec.structs.replace(view, program=outlook(governor, turn, now))
        if resumable or request.media:
            view = msgspec.structs.replace(view, resumable=resumable, media=request.media)
        answer_json(exchange, choice_for(view, self._viewers.of(exchange.request)))


def _why_whole(asked: Request) -> str:
    """Return why prefill and decode must be on one worker, "" if they may be on two."""
    return why_whole(asked.body) if _is_short(asked) else "long body"


def _is_short(asked: Request) -> bool:
    return len(asked.body) <= MOST_READ_BYTES and asked.items <= INLINE_ITEMS
