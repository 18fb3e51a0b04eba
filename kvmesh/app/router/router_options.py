"""How a router decides, from its settings."""

import msgspec

from kvmesh.core.routing.decision import RouterOptions
from kvmesh.core.routing.policy import parse_policy
from kvmesh.core.workers.block_sizes import DEFAULT_BLOCK_SIZE
from kvmesh.settings.roles import CostSettings


def router_options(cost: CostSettings) -> RouterOptions:
    """Return the options that the flags name; the block size is the default one where they name
    none. Raises `ConfigError` for a formula that cannot be read.
    """
    named = parse_policy(f"kv:{cost.kv_cost}", cost.kv_cache_block_size or DEFAULT_BLOCK_SIZE)
    return msgspec.structs.replace(
        named,
        mode=cost.router_mode,
        temperature=max(named.temperature, cost.router_temperature),
        overlap_score_weight=named.overlap_score_weight * cost.kv_overlap_score_weight,
        predict_ttl_s=cost.predict_ttl_s,
        approx_ttl_s=cost.approx_ttl_s,
        tier_weights=(
            *(1.0, cost.host_tier_weight),
            *(cost.disk_tier_weight, cost.disk_tier_weight),
        ),
    )
