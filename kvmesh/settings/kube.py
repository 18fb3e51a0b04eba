"""Settings of what is read from a Kubernetes cluster."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """The InferencePool of a Kubernetes gateway. Needs the extra `kubernetes`."""

    inference_pool: str = ""
    """NAMESPACE/NAME of the InferencePool (inference.networking.k8s.io/v1) to watch. Without
    --nats-url its ready pods, times its target ports, are the workers; in the mesh only workers at
    these addresses get requests. --discover inference-pool: pods as workers, with siblings in NATS.
    Pickers take the priorities of its InferenceObjectives, too."""
