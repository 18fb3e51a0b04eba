"""Settings of single models: how requests for them are routed unless they say otherwise."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final, get_args

import msgspec

from kvmesh.bounds import MAX_TEMPERATURE, MAX_WEIGHT, real_number, shown
from kvmesh.core.cost.catalogue import PUBLISHED, Formulas, split_cost
from kvmesh.core.cost.targets import MAX_MS, key_values
from kvmesh.core.routing.decision import RouterMode
from kvmesh.errors import ConfigError

_MODES: Final = get_args(RouterMode)
_MAX_CACHED: Final = 256


class ModelPolicy(msgspec.Struct, frozen=True):
    """What differs for models that match the glob `model`; None and empty: nothing does."""

    model: str = "*"
    router_mode: RouterMode | None = None
    kv_cost: str | None = None
    router_temperature: float | None = None
    kv_overlap_score_weight: float | None = None
    labels: frozenset[str] = frozenset()
    tolerations: frozenset[str] = frozenset()
    slo_ttft_ms: float | None = None
    slo_tpot_ms: float | None = None


NO_POLICY: Final = ModelPolicy()
_KEYS: Final = tuple(name.replace("_", "-") for name in ModelPolicy.__struct_fields__)


def parse_model_policy(
    text: str, place: str = "--model-policy", formulas: Formulas | None = PUBLISHED
) -> ModelPolicy:
    """Return the policy written `model=llama*,router-temperature=0.1,labels=gpu:h100+zone:a`.

    `formulas` None: its formula is not looked up. Raises `ConfigError` that names the value,
    `place` and the remedy.
    """
    where = f"{place} {text!r}"
    fields = key_values(text, _KEYS, where)
    if "model" not in fields or len(fields) == 1:
        raise ConfigError(f"{where}: write model=GLOB and at least one other key")
    mode = fields.get("router-mode")
    if mode is not None and mode not in _MODES:
        raise ConfigError(f"{where}: router-mode is {mode!r}; use one of {', '.join(_MODES)}")
    cost = fields.get("kv-cost")
    if cost is not None:
        cost, _ = split_cost(cost.split(":", 1)) if ".py:" in cost else (cost, [])
    weight = _number(fields, "kv-overlap-score-weight", MAX_WEIGHT, where)
    if cost is not None:
        weights = {} if weight is None else {"overlap_score_weight": weight}
        if formulas is not None:
            formulas.pricing(cost, weights, f"{where}: kv-cost")
    return ModelPolicy(
        model=fields["model"],
        router_mode=mode,  # type: ignore[arg-type]  # checked above
        kv_cost=cost,
        router_temperature=_number(fields, "router-temperature", MAX_TEMPERATURE, where),
        kv_overlap_score_weight=weight,
        labels=_words(fields, "labels"),
        tolerations=_words(fields, "tolerations"),
        slo_ttft_ms=_number(fields, "slo-ttft-ms", MAX_MS, where),
        slo_tpot_ms=_number(fields, "slo-tpot-ms", MAX_MS, where),
    )


class ModelPolicies:
    """The policies in order, if `any`; the first whose glob matches counts, alone."""

    def __init__(self, policies: Sequence[ModelPolicy] = ()) -> None:
        self.any = bool(policies)
        self._policies = tuple(policies)
        self._found: dict[str, ModelPolicy] = {}

    def find(self, model: str) -> ModelPolicy:
        """Return the model's policy; one that changes nothing when none matches. O(1) mostly."""
        if not self._policies:
            return NO_POLICY
        found = self._found.get(model)
        if found is None:
            matching = (one for one in self._policies if fnmatchcase(model, one.model))
            found = next(matching, NO_POLICY)
            if len(self._found) >= _MAX_CACHED:
                self._found.clear()
            self._found[model] = found
        return found


def _number(fields: dict[str, str], key: str, most: float, where: str) -> float | None:
    text = fields.get(key)
    if text is None:
        return None
    value = real_number(text, 0.0, most)
    if value is None:
        raise ConfigError(f"{where}: {key} is {shown(text)}; use a number >= 0, at most {most:g}")
    return value


def _words(fields: dict[str, str], key: str) -> frozenset[str]:
    return frozenset(word for word in fields.get(key, "").split("+") if word)
