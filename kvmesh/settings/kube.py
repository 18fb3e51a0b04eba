"""Settings of what is read from a Kubernetes cluster."""

from dataclasses import dataclass

from kvmesh.settings.types import Seconds


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """The InferencePool of a Kubernetes gateway. Needs the extra `kubernetes`."""

    inference_pool: str = ""
    """NAMESPACE/NAME of the InferencePool (inference.networking.k8s.io/v1) to watch. Without
    --nats-url its ready pods, times its target ports, are the workers; in the mesh only workers at
    these addresses get requests. --discover inference-pool: pods as workers, with siblings in NATS.
    Pickers take the priorities of its InferenceObjectives, too."""
    kube_context: str = ""
    """Outside a cluster: context of the kubeconfig; default: its current one."""
    kube_relist_s: Seconds = 300.0
    """Seconds after which everything is listed again, whatever the watches reported."""
