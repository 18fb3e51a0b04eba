"""How soon a request's tokens shall come: by its headers, its body, its model, its tenant."""

from collections.abc import Mapping
from typing import Final

from kvmesh.bounds import real_number, shown
from kvmesh.core.chat.inference import Extension
from kvmesh.core.cost.targets import MAX_MS, Targets, targets_of
from kvmesh.core.routing.model_policy import ModelPolicy
from kvmesh.errors import RequestError

_TTFT: Final = ("x-kvmesh-slo-ttft-ms", "x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
_TPOT: Final = ("x-kvmesh-slo-tpot-ms", "x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")

FOREIGN: Final = frozenset(name.encode() for names in (_TTFT, _TPOT) for name in names[1:])
"""Headers of llm-d, and of the Gateway API Inference Extension before it."""


def read_targets(
    given: Mapping[str, str], extension: Extension, policy: ModelPolicy, default: Targets
) -> Targets | None:
    """Return a request's targets, None without any; 0 is none. `given` are headers by name.

    Raises `RequestError` naming a header of ours; one of others that is no number is left out.
    """
    return targets_of(
        _first(_header(given, _TTFT), extension.slo_ttft_ms, policy.slo_ttft_ms, default.ttft_ms),
        _first(_header(given, _TPOT), extension.slo_tpot_ms, policy.slo_tpot_ms, default.tpot_ms),
    )


def _header(given: Mapping[str, str], names: tuple[str, ...]) -> float | None:
    """Return what the first of the headers says that is there."""
    own, *others = names
    text = given.get(own)
    if text is not None:
        value = real_number(text, 0.0, MAX_MS)
        if value is None:
            raise RequestError(
                f"header {own} is {shown(text)}: use milliseconds, a number from 0 to {MAX_MS:g}",
                param=own,
            )
        return value
    return _first(*(real_number(given.get(name, ""), 0.0, MAX_MS) for name in others))


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
