"""Settings of single features: pools of Kubernetes, scaling, splits, tuning."""

from dataclasses import dataclass
from typing import Annotated, Literal

from kvmesh.settings.types import Fixed, Often, Port


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """What is asked of Kubernetes' API server. Needs the extra `kubernetes`."""

    inference_pool: Annotated[str, Often] = ""
    """NAMESPACE/NAME of the InferencePool to watch.
    Without --nats-url its ready pods, times its target ports, are the workers; in the mesh only
    workers at these addresses get requests. --discover inference-pool: pods as workers, with
    siblings in NATS. Pickers take the priorities of its InferenceObjectives, too."""
    mark_pods: bool = False
    """Write on engine pods what losing each would cost, so that a Deployment that is scaled in
    deletes the cheapest. One replica of the bucket does so, for pods of its own namespace with the
    labels kvmesh/engine=true and kvmesh/bucket=BUCKET; its service account has to be allowed to
    list and patch them. Page: docs/operate/autoscaling.md."""


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


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """Weights tuned by the router's own load. See docs/operate/tuning.md."""

    auto_tune: Literal["off", "propose"] = "off"
    """propose: search better weights on the last requests in a simulator, shadow them and
    propose them; who wants them sends PUT /admin/policy. Needs kvmesh-lab: `pip install
    kvmesh-lab`."""
    auto_tune_observe_s: Annotated[float | None, Fixed] = None
    """Seconds a load is observed before weights are searched for it; default: `TunerOptions`."""
