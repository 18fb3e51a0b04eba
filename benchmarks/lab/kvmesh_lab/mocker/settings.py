"""Settings of `kvmesh mocker`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from kvmesh.settings.roles import LogSettings
from kvmesh.settings.types import (
    Cache,
    Count,
    Engines,
    Faults,
    Flat,
    FrontDoor,
    Mesh,
    NonNegative,
    Often,
    Port,
    Positive,
    Seconds,
)

KvConnector = Literal["auto", "nixl", "nixl-push", "mooncake", "p2p-nccl", "shared", "bootstrap"]


@dataclass(frozen=True, kw_only=True)
class MockerSettings:
    """`kvmesh mocker`: a pretend vLLM. The names are those of `kvmesh router` and `kvmesh up`, and
    where these have none vLLM's and Dynamo's mocker's.
    """

    model: Annotated[str, Engines, Often] = "mock"
    """Served model name."""
    served_model_name: Annotated[tuple[str, ...], Engines, Often] = ()
    """Names to serve it under in place of --model; repeat. Answers name the first, as vLLM's do."""
    http_host: Annotated[str, Parameter(alias="--host"), FrontDoor, Often] = "127.0.0.1"
    """Address to listen on."""
    http_port: Annotated[Port, Parameter(alias="--port"), FrontDoor, Often] = 8100
    """Port of the OpenAI server."""
    kv_events_port: Annotated[Port, FrontDoor, Often] = 5557
    """Port of the ZMQ event publisher of rank 0; rank r adds r."""
    kv_replay_port: Annotated[Port, Parameter(alias="--replay-port"), FrontDoor, Often] = 5657
    """Port of the ZMQ replay socket of rank 0; rank r adds r."""
    kv_cache_block_size: Annotated[Positive, Parameter(alias="--block-size"), Cache, Often] = 16
    """Tokens a KV block."""
    num_gpu_blocks: Annotated[
        Positive, Parameter(alias="--num-gpu-blocks-override"), Cache, Often
    ] = 16384
    """KV blocks of each rank."""
    max_num_seqs: Annotated[Positive, Cache, Often] = 256
    """Requests that run at once."""
    max_num_batched_tokens: Annotated[Positive, Cache] = 8192
    """Tokens a step; longer prefills are chunked."""
    max_model_len: Annotated[Positive, Cache, Often] = 131072
    """Longest prompt and answer together, tokens."""
    enable_prefix_caching: Annotated[bool, Cache] = True
    """Reuse cached blocks."""
    sliding_window: Annotated[Count, Cache] = 0
    """Be a hybrid model, with groups of so many tokens beside full attention; 0: none."""
    window_groups: Annotated[Positive, Cache] = 1
    """Groups of sliding windows, with --sliding-window."""
    mamba_groups: Annotated[Count, Cache] = 0
    """Be a hybrid model, with so many groups of mamba states beside full attention."""
    lora_modules: Annotated[tuple[str, ...], Engines] = ()
    """A LoRA adapter served under this name; repeat."""
    max_loras: Annotated[Count, Engines] = 0
    """Adapters held ready at a time, the others are loaded first; 0: all."""
    lora_load_ms: Annotated[NonNegative, Engines] = 100.0
    """How long loading an adapter takes, ms, with --max-loras."""
    data_parallel_size: Annotated[Positive, Engines, Often] = 1
    """Ranks, each with its own cache and event stream."""
    timing_profile: Annotated[str, Cache, Often] = "dynamo"
    """Step-time model, by name."""
    speedup_ratio: Annotated[Seconds, Cache, Often] = 1.0
    """How much faster than life steps run."""
    startup_time: Annotated[NonNegative, FrontDoor, Often] = 0.0
    """Seconds until the server answers."""
    role: Annotated[Literal["both", "prefill", "decode"], Engines, Often] = "both"
    """What it does for others: prefill and decode check the handshake of a KV transfer."""
    kv_connector: Annotated[
        Literal["auto", "nixl", "nixl-push", "mooncake", "p2p-nccl", "shared", "bootstrap"], Engines
    ] = "auto"
    """With a role: the handshake to check, by its name in
    docs/workloads/prefill-decode.md; auto: nixl, with --bootstrap-port SGLang's bootstrap."""
    bootstrap_port: Annotated[Port, Engines] = 0
    """With a role: port of mooncake's, p2p-nccl's and SGLang's side channel."""
    fail: Annotated[tuple[str, ...], Faults, Often] = ()
    """SHARE:KIND[=VALUE]: a share (0 to 1) of the requests meets this fault; repeat. Probes meet
    none. KIND is a status of 400 to 599 (429=2, 503=2: with retry-after), hang (never answered),
    slow=10 (takes 10 times as long), reset, cut (in the middle of the answer), die-after=20,
    hang-after=20 (behind the 20th token of a stream the process ends itself, or sends nothing
    more), garbage, half-head (no whole answer begins), dead (500 as of a dead engine), or a 200
    that is none: empty-body, empty-stream, random-bytes, html, error-200, error-event (a stream
    begins with an error), wrong-model, half-json, no-done (no end), no-tokens."""
    flap: Annotated[str, Faults] = ""
    """GOOD:BAD in seconds, e.g. 2:2: good and bad phases take turns, faults apply in bad ones."""
    fail_health: Annotated[bool, Faults] = False
    """Answer /health with 503; with --flap in the bad phases only."""
    fail_seed: Annotated[int, Faults] = 0
    """Seed of the faults: the n-th request meets the same one again."""
    slowdown: Annotated[Seconds, Faults, Often] = 1.0
    """How many times as long each step takes, 1 to 1000."""
    first_pause_s: Annotated[NonNegative, Faults] = 0.0
    """Seconds more that its first step takes, as of an engine that compiles."""
    stall: Annotated[bool, Faults, Often] = False
    """Hang: take requests, /health included, and no further step."""
    hang_health: Annotated[bool, Faults] = False
    """Answer no GET request, /health and /metrics included."""
    tokenizer: Annotated[Path | None, Engines, Often] = None
    """Model directory; default: the byte tokenizer."""
    log: Annotated[LogSettings, Flat, Mesh] = field(default_factory=LogSettings)
