"""Whether and how carefully a router tunes the weights of its formula."""

from dataclasses import dataclass
from typing import Literal

from kvmesh.settings.types import Positive, Seconds, Share


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """Weights tuned by the router's own load. See docs/operate/tuning.md."""

    auto_tune: Literal["off", "propose", "apply"] = "off"
    """propose: search better weights on the last requests in a simulator, shadow them and
    propose them; apply: try them at 5, 25 and 100 % of the requests and keep them if they win.
    Both need kvmesh-lab: `pip install kvmesh-lab`."""
    auto_tune_window_s: Seconds = 600.0
    """Seconds of requests kept as a trace, which GET /admin/trace downloads."""
    auto_tune_memory_mib: Positive = 32
    """Most memory the trace takes, MiB; beyond it only a part of the prefix families is kept."""
    auto_tune_observe_s: Seconds = 120.0
    """Seconds a load is observed before weights are searched for it, and a trial is judged."""
    auto_tune_requests: Positive = 500
    """Requests that a search, and the verdict on a trial, need at least."""
    auto_tune_gain: Share = 0.03
    """Least gain on requests held out for which weights are tried."""
    auto_tune_search_s: Seconds = 60.0
    """Seconds a search may take, in a process of the lowest priority."""
    auto_tune_shadow_s: Seconds = 60.0
    """Seconds that found weights are shadowed before they are proposed or tried."""
    auto_tune_trial_requests: Positive = 200
    """Requests by the weights on trial, and by those in force, before a trial gets more."""
    auto_tune_rest_s: Seconds = 600.0
    """Seconds without a search after weights were found wanting."""
    auto_tune_every_s: Seconds = 3600.0
    """Seconds after which the same load is searched again."""
