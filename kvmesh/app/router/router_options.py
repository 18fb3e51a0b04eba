"""How a router decides, from its settings."""

from collections.abc import Iterable
from typing import Final, TypedDict

import msgspec

from kvmesh.app.formulas.formula_file import load_formulas
from kvmesh.core.cost.catalogue import Formulas, reweigh
from kvmesh.core.overlap.tier_credit import DEFAULT_WEIGHTS, DISK, ELSEWHERE, HOST
from kvmesh.core.programs.governor import GovernorOptions
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.core.routing.model_policy import parse_model_policy
from kvmesh.core.routing.policy import parse_policy, read_assignment
from kvmesh.core.routing.sessions import SessionOptions
from kvmesh.core.routing.shadow_policy import ShadowPolicies, parse_shadow
from kvmesh.core.scaling.scaling import ScalingOptions
from kvmesh.core.workers.block_sizes import DEFAULT_BLOCK_SIZE
from kvmesh.errors import ConfigError
from kvmesh.settings.requests import ProgramSettings, SessionSettings
from kvmesh.settings.roles import CostSettings, RouterSettings
from kvmesh.settings.scaling import ScalingSettings

_TENANTS_SHARE: Final = 4
"""One tenant's part of the agents that are followed is 1 / this."""


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
        ttl_s=settings.session_ttl_s,
        slack_ms=settings.session_slack_ms,
    )


def scaling_options(settings: ScalingSettings) -> ScalingOptions:
    """Return from when on workers count as full."""
    return ScalingOptions(settings.scale_backlog_s, settings.scale_target)


def governor_options(settings: ProgramSettings) -> GovernorOptions:
    """Return how programs take turns; one tenant has a quarter of the places at most, so that names
    made up by one leave room for the others.
    """
    return GovernorOptions(
        turns=settings.program_turns == "on",
        max_wait_s=settings.program_wait_s,
        fill=settings.program_fill,
        ttl_s=settings.program_ttl_s,
        max_agents=settings.max_programs,
        max_agents_per_tenant=max(1, settings.max_programs // _TENANTS_SHARE),
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
