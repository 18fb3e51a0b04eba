"""Requests are read before they are routed: parsed, tokenised, hashed."""

import asyncio
import time
from collections.abc import Callable, Container
from math import inf

import msgspec

from kvmesh.app.prompts.intake import Intake
from kvmesh.app.prompts.prompt_reader import PromptReader
from kvmesh.app.prompts.request_wishes import WishOptions, WishReader, read_timeout_s
from kvmesh.app.prompts.token_check import Holder, TokenCheck
from kvmesh.app.prompts.tokenizer import TokenizerOptions, load_tokenizer
from kvmesh.core.insight.histogram import Histogram
from kvmesh.core.prompts.parity import ParityOptions
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.disaggregation import SplitOptions
from kvmesh.core.routing.model_policy import ModelPolicies, parse_model_policy
from kvmesh.errors import KvMeshError
from kvmesh.settings.roles import RouterSettings
from kvmesh.settings.secret_file import read_hash_secret
from kvmesh.transport.http.forward.plan import ForwardOptions
from kvmesh.transport.http.openai import ApiEndpoint, InferenceRequest
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.problem import Problem

Then = Callable[[Exchange, InferenceRequest, RouteRequest], None]


class Reading:
    """Reads a request and hands it on; a long prompt is tokenised in a thread, so that other
    streams go on meanwhile. `tokenize_s` counts how long reading takes.
    """

    def __init__(self, intake: Intake, tokenize_s: Histogram) -> None:
        self._intake = intake
        self._tokenize_s = tokenize_s

    def read(self, exchange: Exchange, endpoint: ApiEndpoint, then: Then) -> None:
        """Call `then` with what was read: at once, or from a later turn. Raises `RequestError`."""
        parsed = self._intake.parse(exchange, endpoint)
        if not self._intake.is_long(exchange.request):
            began = time.perf_counter()
            request = self._intake.read(exchange, endpoint, parsed)
            self._tokenize_s.observe(time.perf_counter() - began)
            then(exchange, parsed, request)
            return
        exchange.scope.start(self._read_in_thread(exchange, endpoint, parsed, then))

    async def _read_in_thread(
        self, exchange: Exchange, endpoint: ApiEndpoint, parsed: InferenceRequest, then: Then
    ) -> None:
        began = time.perf_counter()
        try:
            request = await asyncio.to_thread(self._intake.read, exchange, endpoint, parsed)
            self._tokenize_s.observe(time.perf_counter() - began)
            then(exchange, parsed, request)
        except KvMeshError as error:
            exchange.fail(Problem.from_error(error))


def check_of(settings: RouterSettings, pool: UpstreamPool, holder: Holder) -> TokenCheck:
    """Return what compares token ids with the engines'; make it on the event loop."""
    return TokenCheck(pool, holder, ParityOptions(sample_every=settings.parity_sample))


def intake_of(
    settings: RouterSettings, router_id: str, check: TokenCheck, adapters: Container[str]
) -> Intake:
    """Return what reads requests by these settings; loads the tokenizer."""
    tokenizer = load_tokenizer(
        str(settings.tokenizer) if settings.tokenizer else None,
        options=TokenizerOptions(engine=settings.tokenizer_engine),
    )
    block_size = settings.cost.kv_cache_block_size
    return Intake(
        PromptReader(tokenizer, block_size, settings.vocab_size, check),
        router_id,
        adapters=adapters,
        wishes=WishReader(
            WishOptions(
                obeyed=settings.client_overrides,
                tenant_header=settings.admission.tenant_header,
                session_header=settings.session.session_header,
            ),
            ModelPolicies([parse_model_policy(one) for one in settings.model_policy]),
        ),
        secret=read_hash_secret(settings.cost.hash_secret_file),
    )


def forward_options(settings: RouterSettings) -> ForwardOptions:
    """Return how requests are forwarded by these settings."""
    return ForwardOptions(
        max_retries=settings.upstream.max_retries,
        retry_statuses=frozenset(settings.failure.retry_statuses),
        deadline_s=settings.stream.request_timeout_s or None,
        comments_s=settings.stream.sse_comment_s or None,
    )


def split_options(settings: RouterSettings) -> SplitOptions:
    """Return when requests are split between prefill and decode workers."""
    return SplitOptions(
        threshold_tokens=settings.cost.prefill_threshold,
        max_retries=settings.upstream.max_retries,
        timeout_s=settings.upstream.first_byte_timeout_s,
    )


def within_patience(options: ForwardOptions, request: Request) -> ForwardOptions:
    """Return `options` with the client's own deadline, if that is nearer. Raises `RequestError`."""
    timeout_s = read_timeout_s(request)
    if timeout_s is None or timeout_s >= (options.deadline_s or inf):
        return options
    return msgspec.structs.replace(options, deadline_s=timeout_s)
