"""Prefill and decode on two workers: when a router splits, and how a worker shares."""

from dataclasses import dataclass
from typing import Literal

from kvmesh.settings.types import Port


@dataclass(frozen=True, kw_only=True)
class SplitSettings:
    """When prefill and decode of a request are split. Page: docs/workloads/prefill-decode.md."""

    prefill_split: Literal["adaptive", "always"] = "adaptive"
    """Of prompts with 256 uncached tokens and more at a decode worker, adaptive: splits those for
    which prefilling elsewhere and moving the KV cache costs less time than there; always: all."""


@dataclass(frozen=True, kw_only=True)
class ConnectorSettings:
    """How prefill and decode workers share requests. See docs/workloads/prefill-decode.md."""

    kv_connector: Literal[
        "auto", "nixl", "nixl-push", "mooncake", "p2p-nccl", "shared", "bootstrap"
    ] = "auto"
    """How the engine's prefill and decode workers share a request; auto: in the usual way."""
    bootstrap_port: Port = 0
    """Port at which prefill and decode workers find each other: mooncake's bootstrap server,
    p2p-nccl's kv_port (of decode workers, too); default: asked of the engine, if it reports it."""
