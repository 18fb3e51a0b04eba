"""Settings of `kvmesh mocker`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from kvmesh.settings.roles import LogSettings
from kvmesh.settings.types import Count, Flat, NonNegative, Port, Positive, Seconds


@dataclass(frozen=True, kw_only=True)
class MockerSettings:
    """`kvmesh mocker`: a pretend vLLM. The names are vLLM's and Dynamo's mocker's."""

    model: str = "mock"
    """Served model name."""
    served_model_name: tuple[str, ...] = ()
    """Names to serve it under in place of --model; repeat. Answers name the first, as vLLM's do."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 8100
    """Port of the OpenAI server."""
    kv_events_port: Port = 5557
    """Port of the ZMQ event publisher of rank 0; rank r adds r."""
    replay_port: Port = 5657
    """Port of the ZMQ replay socket of rank 0; rank r adds r."""
    block_size: Positive = 16
    """Tokens a KV block."""
    num_gpu_blocks_override: Positive = 16384
    """KV blocks of each rank."""
    max_num_seqs: Positive = 256
    """Requests that run at once."""
    max_num_batched_tokens: Positive = 8192
    """Tokens a step; longer prefills are chunked."""
    max_model_len: Positive = 131072
    """Longest prompt and answer together, tokens."""
    enable_prefix_caching: bool = True
    """Reuse cached blocks."""
    sliding_window: Count = 0
    """Be a hybrid model, with groups of so many tokens beside full attention; 0: none."""
    window_groups: Positive = 1
    """Groups of sliding windows, with --sliding-window."""
    mamba_groups: Count = 0
    """Be a hybrid model, with so many groups of mamba states beside full attention."""
    lora_modules: tuple[str, ...] = ()
    """A LoRA adapter served under this name; repeat."""
    max_loras: Count = 0
    """Adapters held ready at a time, the others are loaded first; 0: all."""
    lora_load_ms: NonNegative = 100.0
    """How long loading an adapter takes, ms, with --max-loras."""
    data_parallel_size: Positive = 1
    """Ranks, each with its own cache and event stream."""
    timing_profile: str = "dynamo"
    """Step-time model, by name."""
    speedup_ratio: Seconds = 1.0
    """How much faster than life steps run."""
    startup_time: NonNegative = 0.0
    """Seconds until the server answers."""
    role: Literal["both", "prefill", "decode"] = "both"
    """What it does for others: prefill and decode check the handshake of a KV transfer."""
    kv_connector: Literal[
        "auto", "nixl", "nixl-push", "mooncake", "p2p-nccl", "shared", "bootstrap"
    ] = "auto"
    """With a role: the handshake to check, by its name in
    docs/workloads/prefill-decode.md; auto: nixl, with --bootstrap-port SGLang's bootstrap."""
    bootstrap_port: Port = 0
    """With a role: port of mooncake's, p2p-nccl's and SGLang's side channel."""
    fail: tuple[str, ...] = ()
    """SHARE:KIND[=VALUE], repeatable: a share (0 to 1) of the generation requests meets this fault.
    KIND is a status of 400 to 599 (429=2, 503=2: with retry-after), hang (never answered), slow=10
    (takes 10 times as long), reset, cut (in the middle of the answer), die-after=20, hang-after=20
    (behind the 20th token of a stream the process ends itself, or sends nothing more), garbage,
    half-head (no whole answer begins), dead (500 as of a dead engine), or a 200 that is none:
    empty-body, empty-stream, random-bytes, html, error-200, error-event (a stream begins with an
    error), wrong-model, half-json, no-done (no end), no-tokens. Probes meet none."""
    flap: str = ""
    """GOOD:BAD in seconds, e.g. 2:2: good and bad phases take turns, faults apply in bad ones."""
    fail_health: bool = False
    """Answer /health with 503; with --flap in the bad phases only."""
    fail_seed: int = 0
    """Seed of the faults: the n-th request meets the same one again."""
    slowdown: Seconds = 1.0
    """How many times as long each step takes, 1 to 1000."""
    first_pause_s: NonNegative = 0.0
    """Seconds more that its first step takes, as of an engine that compiles."""
    stall: bool = False
    """Hang: take requests, /health included, and no further step."""
    hang_health: bool = False
    """Answer no GET request, /health and /metrics included."""
    tokenizer: Path | None = None
    """Model directory; default: the byte tokenizer."""
    log: Annotated[LogSettings, Flat] = field(default_factory=LogSettings)
