"""How a router decides, from its settings."""

from collections.abc import Iterable
from typing import Final, TypedDict

import msgspec

from kvmesh.app.serve.formula_file import load_formulas
from kvmesh.core.cost.catalogue import Formulas, reweigh
from kvmesh.core.index.tier_credit import DEFAULT_WEIGHTS, DISK, ELSEWHERE, HOST
from kvmesh.core.members.block_sizes import DEFAULT_BLOCK_SIZE
from kvmesh.core.programs.held import GovernorOptions
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.core.routing.model_policy import parse_model_policy
from kvmesh.core.routing.policy import parse_policy
from kvmesh.core.routing.sessions import SessionOptions
from kvmesh.core.routing.shadow_policy import ShadowPolicies, parse_shadow
from kvmesh.errors import ConfigError
from kvmesh.settings.requests import ProgramSettings, SessionSettings
from kvmesh.settings.roles import CostSettings, RouterSettings

OVERLAP: Final = "overlap_score_weight"


def named_formulas(settings: RouterSettings) -> Formulas:
    """Return the formulas that a router may use, those of files tried. Raises `ConfigError`."""
    shadows = settings.decision.shadow_policy
    return load_formulas((settings.cost.kv_cost, *shadows, *settings.model_policy))


def shadow_policies(settings: RouterSettings, options: RouterOptions) -> ShadowPolicies:
    """Return the policies that are asked and not obeyed. Raises `ConfigError`."""
    block_size, formulas = options.block_size, options.formulas
    shadows = settings.decision.shadow_policy
    return ShadowPolicies([parse_shadow(one, block_size, formulas) for one in shadows])


def session_options(settings: SessionSettings) -> SessionOptions:
    """Return how sessions are kept; their affinity must not be off."""
    assert settings.session_affinity != "off"
    return SessionOptions(
        affinity=settings.session_affinity,
    )


def governor_options(settings: ProgramSettings) -> GovernorOptions:
    """Return how programs take turns."""
    return GovernorOptions(
        turns=settings.program_turns == "on",
        max_wait_s=settings.program_wait_s,
    )


def check_model_policies(texts: Iterable[str], options: RouterOptions) -> None:
    """Raise `ConfigError` for a model's policy that cannot be with this router's formula."""
    for text in texts:
        policy = parse_model_policy(text, formulas=options.formulas)
        if policy.kv_cost is None and policy.kv_overlap_score_weight is not None:
            weights = {"overlap_score_weight": policy.kv_overlap_score_weight}
            reweigh(options.pricing(), weights, f"--model-policy {text!r}")


def router_options(settings: RouterSettings) -> RouterOptions:
    """Return the options that the flags name, their formulas of files tried; the block size is the
    default one where they name none.

    Raises `ConfigError` for a formula that there is not, a weight that it lacks or has twice.
    """
    options = _options(settings.cost, named_formulas(settings))
    check_model_policies(settings.model_policy, options)
    return options


def _options(cost: CostSettings, formulas: Formulas) -> RouterOptions:
    block_size = cost.kv_cache_block_size or DEFAULT_BLOCK_SIZE
    named = parse_policy(f"kv:{cost.kv_cost}", block_size, formulas)
    weights = dict(named.weights)
    if cost.kv_overlap_score_weight is not None:
        place, table = "--kv-overlap-score-weight", formulas.plain(named.cost).cost.weights
        table.make({OVERLAP: cost.kv_overlap_score_weight}, f"{place}: --kv-cost {named.cost}")
        if OVERLAP in weights:
            raise ConfigError(f"{place}: --kv-cost gives {OVERLAP}, too: give it once")
        weights[OVERLAP] = cost.kv_overlap_score_weight
    return msgspec.structs.replace(
        named,
        mode=cost.router_mode,
        temperature=max(named.temperature, cost.router_temperature),
        weights=weights,
        predict_ttl_s=cost.predict_ttl_s,
        approx_ttl_s=cost.approx_ttl_s,
        **_tiers(cost.host_tier_weight, cost.disk_tier_weight),
    )


class _Tiers(TypedDict):
    tier_weights: tuple[float, ...]
    fixed_tiers: frozenset[int]


def _tiers(host: float | None, disk: float | None) -> _Tiers:
    """Return the weights of tiers, and those of them that the flags fix."""
    weights, fixed = list(DEFAULT_WEIGHTS), set[int]()
    for tiers, given in (((HOST,), host), ((DISK, ELSEWHERE), disk)):
        if given is not None:
            fixed.update(tiers)
            for tier in tiers:
                weights[tier] = given
    return _Tiers(tier_weights=tuple(weights), fixed_tiers=frozenset(fixed))
