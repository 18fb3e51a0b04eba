"""How a router decides, from its settings."""

from collections.abc import Iterable

import msgspec

from kvmesh.core.cost.catalogue import PUBLISHED, Formulas, reweigh
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.core.routing.model_policy import parse_model_policy
from kvmesh.core.routing.policy import parse_policy, read_assignment
from kvmesh.errors import ConfigError
from kvmesh.settings.roles import CostSettings


def check_model_policies(texts: Iterable[str], options: RouterOptions) -> None:
    """Raise `ConfigError` for a model's policy that cannot be with this router's formula."""
    for text in texts:
        policy = parse_model_policy(text, formulas=options.formulas)
        if policy.kv_cost is None and policy.kv_overlap_score_weight is not None:
            weights = {"overlap_score_weight": policy.kv_overlap_score_weight}
            reweigh(options.pricing(), weights, f"--model-policy {text!r}")


def router_options(cost: CostSettings, formulas: Formulas = PUBLISHED) -> RouterOptions:
    """Return the options that the flags name.

    Raises `ConfigError` for a formula that there is not, a weight that it lacks or has twice.
    """
    named = parse_policy(f"kv:{cost.kv_cost}", cost.kv_cache_block_size, formulas)
    given = [
        (f"--kv-weight {text}", *read_assignment(text, "--kv-weight")) for text in cost.kv_weight
    ]
    if cost.kv_overlap_score_weight is not None:
        place = "--kv-overlap-score-weight"
        given.append((place, "overlap_score_weight", cost.kv_overlap_score_weight))
    weights, table = dict(named.weights), formulas.plain(named.cost).cost.weights
    for place, name, number in given:
        table.make({name: number}, f"{place}: --kv-cost {named.cost}")
        if name in weights:
            raise ConfigError(
                f"{place}: the weight {name} is given twice: give it once, by --kv-cost, "
                "--kv-weight or --kv-overlap-score-weight"
            )
        weights[name] = number
    return msgspec.structs.replace(
        named,
        mode=cost.router_mode,
        temperature=max(named.temperature, cost.router_temperature),
        weights=weights,
        predict_ttl_s=cost.predict_ttl_s,
        approx_ttl_s=cost.approx_ttl_s,
        tier_weights=(1.0, cost.host_tier_weight, cost.disk_tier_weight, cost.disk_tier_weight),
    )
