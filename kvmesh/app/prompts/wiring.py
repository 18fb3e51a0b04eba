"""What reads requests, and how they are forwarded, by the settings of a router."""

from collections.abc import Container

from kvmesh._native import Histogram
from kvmesh.app.prompts.isolation import isolation_of
from kvmesh.app.prompts.prompt_reader import PromptReader
from kvmesh.app.prompts.reading import Reader
from kvmesh.app.prompts.request_wishes import WishOptions, WishReader
from kvmesh.app.prompts.token_check import Holder, TokenCheck
from kvmesh.app.prompts.tokenizer import (
    ByteTokenizer,
    Tokenizer,
    TokenizerOptions,
    load_tokenizer,
)
from kvmesh.core.cost.targets import TargetDefaults, parse_default_targets
from kvmesh.core.engines.registry import engine_of
from kvmesh.core.members.block_sizes import DEFAULT_BLOCK_SIZE
from kvmesh.core.prompts.parity import ParityOptions
from kvmesh.core.routing.disaggregation import SplitOptions
from kvmesh.core.routing.model_policy import ModelPolicies, parse_model_policy
from kvmesh.observe import get_logger
from kvmesh.settings.requests import SloSettings
from kvmesh.settings.roles import RouterSettings
from kvmesh.transport.http.forward.asked import Takers
from kvmesh.transport.http.forward.plan import ForwardOptions
from kvmesh.transport.http.forward.resume import StreamKeep
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.upstream.messages import UpstreamOptions


def check_of(settings: RouterSettings, pool: UpstreamPool, holder: Holder) -> TokenCheck:
    """Return what compares token ids with the engines'; make it on the event loop."""
    return TokenCheck(pool, holder, ParityOptions(sample_every=settings.parity_sample))


def reader_of(
    settings: RouterSettings,
    router_id: str,
    check: TokenCheck,
    adapters: Container[str],
    seconds: Histogram | None = None,
    secret: bytes = b"",
) -> Reader:
    """Return what reads requests by these settings; loads the tokenizer.

    `seconds` counts how long reading takes. `secret` keys the hashes of blocks.
    """
    tokenizer: Tokenizer = ByteTokenizer()
    if settings.tokenizer is not None:
        options = TokenizerOptions(engine=settings.tokenizer_engine)
        tokenizer = check.tokenizer = load_tokenizer(str(settings.tokenizer), options=options)
        known = check.tokenizer.statistics()
        get_logger().info(
            "tokenizer loaded", backend=known.backend, note=known.note, template_runs=known.unlike
        )
    block_size = settings.cost.kv_cache_block_size or DEFAULT_BLOCK_SIZE
    engine = engine_of(settings.tokenizer_engine)
    reader = Reader(
        PromptReader(tokenizer, block_size, settings.vocab_size, check, engine),
        router_id,
        adapters=adapters,
        wishes=WishReader(
            WishOptions(
                obeyed=settings.client_overrides,
                tenant_header=settings.admission.tenant_header,
                targets=target_defaults(settings.slo),
            ),
            # `router_options` has checked their formulas, of files too.
            ModelPolicies(
                [parse_model_policy(one, formulas=None) for one in settings.model_policy]
            ),
        ),
        secret=secret,
        seconds=seconds,
    )
    reader.isolation = isolation_of(settings.tenant, settings.admission.tenant_header)
    return reader


def target_defaults(settings: SloSettings) -> TargetDefaults:
    """Return the targets of requests that name none. Raises `ConfigError`."""
    return TargetDefaults(tenants=[parse_default_targets(one) for one in settings.slo])


def forward_options(settings: RouterSettings, streams: StreamKeep | None = None) -> ForwardOptions:
    """Return how requests are forwarded by these settings; `streams` keeps what they need to go on
    when their worker is lost, None: nothing does.
    """
    return ForwardOptions(
        keep=streams,
        max_retries=settings.upstream.max_retries,
        reads_usage=True,
        usage=Takers(),
        deadline_s=settings.stream.request_timeout_s or None,
        comments_s=settings.stream.sse_comment_s or None,
    )


def split_options(settings: RouterSettings) -> SplitOptions:
    """Return when requests are split between prefill and decode workers."""
    return SplitOptions(
        threshold_tokens=settings.cost.prefill_threshold,
        max_retries=settings.upstream.max_retries,
        timeout_s=UpstreamOptions().first_byte_timeout_s,
        adaptive=settings.split.prefill_split == "adaptive",
    )
