"""Whether a router tunes the weights of its formula."""

from dataclasses import dataclass
from typing import Annotated, Literal

from kvmesh.settings.types import Fixed


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """Weights tuned by the router's own load. See docs/operate/tuning.md."""

    auto_tune: Literal["off", "propose", "apply"] = "off"
    """propose: search better weights on the last requests in a simulator, shadow them and
    propose them; apply: try them at 5, 25 and 100 % of the requests and keep them if they win.
    Both need kvmesh-lab: `pip install kvmesh-lab`."""
    auto_tune_observe_s: Annotated[float | None, Fixed] = None
    """Seconds a load is observed before weights are searched for it; default: `TunerOptions`."""
