"""Settings of what autoscalers are told."""

from dataclasses import dataclass

from kvmesh.settings.types import Seconds


@dataclass(frozen=True, kw_only=True)
class ScalingSettings:
    """From when on workers count as full. See docs/operate/autoscaling.md."""

    scale_backlog_s: Seconds = 1.0
    """Mean predicted wait of a new request at a worker that counts as full, seconds."""
    scale_target: Seconds = 0.8
    """How full workers should be: `kvmesh_wanted_workers` says how many it would take for that."""
