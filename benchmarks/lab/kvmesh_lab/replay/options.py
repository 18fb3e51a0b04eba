"""What `kvmesh replay` can be told, and what of it makes no sense."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from cyclopts import Parameter, Token

from kvmesh.errors import ConfigError
from kvmesh_lab.replay.policy import policy_headers
from kvmesh_lab.report.statistics import Slo
from kvmesh_lab.traces.prompts import PromptUnit

SessionHeaders = Literal["kvmesh", "claude-code", "dynamo", "opencode", "none"]

PLOT_SUFFIXES: Final = (".svg", ".png", ".pdf")


def split_commas(_: type, tokens: Sequence[Token]) -> tuple[str, ...]:
    """Return the words of one or several comma-separated values."""
    return tuple(word for token in tokens for word in token.value.split(",") if word)


Words = Annotated[tuple[str, ...], Parameter(converter=split_commas)]


@dataclass(frozen=True)
class ReplayOptions:
    """One replay. `trace` and `url` are all that most need.

    A dataclass, since the command line is made from it.
    """

    trace: Path
    """Trace file in Mooncake's format or of sessions, JSON lines, gzip or plain."""
    _: KW_ONLY
    url: str = "http://127.0.0.1:8000"
    """Base URL of the OpenAI endpoint, without /v1."""
    model: str = ""
    """Model to ask for; default: the first the endpoint lists."""
    api_key: str = ""
    """Sent as bearer token; never written to a report."""
    endpoint: Literal["chat", "completions"] = "chat"
    """/v1/chat/completions with one user message, or /v1/completions."""
    prompt_unit: PromptUnit = "bytes"
    """What one token becomes: bytes (byte tokenizer), words (trained tokenizers), token-ids."""
    trace_block_size: int | None = None
    """Tokens a hash id stands for; default: from the file name (…_b512.jsonl), else inferred."""
    requests: int | None = None
    """Requests to send; default: all."""
    repeat: bool = False
    """Where the trace has fewer than --requests, begin it again with fresh prompts."""
    sessions: int | None = None
    """Of a trace of sessions: how many to play, with their sub-agents; default: all. Beyond its end
    it begins again with fresh ones."""
    skip: int = 0
    """Requests (of a trace of sessions: sessions) at the start of the trace to leave out."""
    speedup: float = 1.0
    """How many times faster than recorded requests arrive; think times stay as recorded."""
    time_scale: float = 1.0
    """Multiplies times and think times: 0.1 plays ten recorded seconds in one."""
    smooth: bool = True
    """Spread times that were rounded (Mooncake: to 3 s) over the rounding interval."""
    concurrency: int | None = None
    """Closed loop: so many sessions at a time, each with its sub-agents, the trace's times ignored
    but for pauses. Default: open loop."""
    session_headers: SessionHeaders = "kvmesh"
    """How requests of a session name it: kvmesh (x-kvmesh-program), or as claude-code, dynamo or
    opencode do; none: not at all."""
    max_input_tokens: int | None = None
    """Longest prompt, tokens; longer ones are cut at their end."""
    output_tokens: int | None = None
    """Longest answer asked for, tokens."""
    ignore_eos: bool = True
    """Ask for exactly the trace's output lengths (vLLM and SGLang extension)."""
    timeout_s: float = 600.0
    """Seconds until an unfinished request counts as failed."""
    compare: Words = ()
    """Policies, one run under each, the first is the baseline: round-robin, kv, kv:COST,
    kv:COST:overlap_score_weight=2:temperature=0.1; kv:FILE.py:FUNCTION only where the router was
    started with that formula."""
    settle_s: float = 1.0
    """Seconds between two runs."""
    reset_engine: Words = ()
    """Engine URLs whose prefix caches are emptied before each run (POST /reset_prefix_cache)."""
    bucket: Words = ()
    """Buckets to name in x-kvmesh-bucket; several need `bucket_by`."""
    bucket_by: Literal["session", "prefix"] | None = None
    """What keeps requests in one of the buckets: their session, or their prefix family."""
    seed: int = 0
    """Seed of prompts and smoothing. The same seed sends the same prompts again."""
    slo_ttft_ms: float = 2_000.0
    """Goodput counts requests whose first token came within so many ms …"""
    slo_itl_ms: float = 100.0
    """… and whose time per further token was at most this, ms."""
    json: Path | None = None
    """Write summaries and every request as JSON."""
    csv: Path | None = None
    """Write one line per request as CSV."""
    html: Path | None = None
    """Write a self-contained HTML report with plots (extra `plots`)."""
    plot: Path | None = None
    """Write the plots as .svg, .png or .pdf (extra `plots`)."""
    progress: bool = True
    """Show a progress bar on a terminal."""

    def slo(self) -> Slo:
        """Return the bounds goodput is counted at."""
        return Slo(ttft_ms=self.slo_ttft_ms, itl_ms=self.slo_itl_ms)


def check_options(options: ReplayOptions) -> None:
    """Refuse values that cannot work, before anything is sent. Raises `ConfigError`."""
    for url, flag in (
        (options.url, "--url"),
        *((u, "--reset-engine") for u in options.reset_engine),
    ):
        _check_url(url, flag)
    positive = {
        "--requests": options.requests,
        "--sessions": options.sessions,
        "--speedup": options.speedup,
        "--time-scale": options.time_scale,
        "--concurrency": options.concurrency,
        "--max-input-tokens": options.max_input_tokens,
        "--output-tokens": options.output_tokens,
        "--timeout": options.timeout_s,
        "--trace-block-size": options.trace_block_size,
    }
    for flag, value in positive.items():
        if value is not None and value <= 0:
            raise ConfigError(f"{flag} {value}: must be more than 0")
    for flag, count in {"--skip": options.skip, "--settle": options.settle_s}.items():
        if count < 0:
            raise ConfigError(f"{flag} {count}: must be 0 or more")
    _check_choices(options)


def _check_url(url: str, flag: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(f"{flag} {url!r}: expected http://host:port")
    if parts.path.rstrip("/").endswith("/v1"):
        raise ConfigError(f"{flag} {url!r}: give the base URL, without /v1")


def _check_choices(options: ReplayOptions) -> None:
    if len(set(options.compare)) != len(options.compare):
        raise ConfigError(f"--compare {','.join(options.compare)}: name each policy once")
    for policy in options.compare:
        policy_headers(policy)
    if len(options.bucket) > 1 and options.bucket_by is None:
        raise ConfigError("--bucket names several buckets: say --bucket-by session or prefix")
    if options.bucket_by is not None and not options.bucket:
        raise ConfigError("--bucket-by needs the buckets' names in --bucket")
    if options.prompt_unit == "token-ids" and options.endpoint != "completions":
        raise ConfigError("--prompt-unit token-ids needs --endpoint completions")
    if options.plot is not None and options.plot.suffix not in PLOT_SUFFIXES:
        raise ConfigError(f"--plot {options.plot}: name it {', '.join(PLOT_SUFFIXES)}")
    for path in (options.json, options.csv, options.html, options.plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"{path}: its directory does not exist")
