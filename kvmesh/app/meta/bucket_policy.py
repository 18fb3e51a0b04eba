"""How a meta-router chooses the bucket of a conversation that begins, from its settings."""

from collections.abc import Sequence

from kvmesh.app.serve.formula_file import load_formulas
from kvmesh.core.buckets.bucket_cost import BucketCost
from kvmesh.core.buckets.placing import BucketPolicy
from kvmesh.core.cost.own import OwnFormula
from kvmesh.core.members.block_sizes import DEFAULT_BLOCK_SIZE
from kvmesh.core.routing.policy import parse_policy
from kvmesh.errors import ConfigError
from kvmesh.settings.roles import MetaRouterSettings


def bucket_policy(
    settings: MetaRouterSettings,
) -> tuple[BucketPolicy | BucketCost, Sequence[OwnFormula]]:
    """Return the policy, and the formula of one's own, tried, that is part of it.

    Raises `ConfigError` for a formula that there is not, a weight that it lacks, or a formula
    beside another policy.
    """
    if not settings.kv_cost:
        return settings.bucket_policy, ()
    if settings.bucket_policy != MetaRouterSettings.bucket_policy:
        raise ConfigError(
            f"--bucket-policy {settings.bucket_policy} and --kv-cost {settings.kv_cost}: give one; "
            "either chooses the bucket of a conversation that begins"
        )
    formulas = load_formulas((settings.kv_cost,))
    options = parse_policy(f"kv:{settings.kv_cost}", DEFAULT_BLOCK_SIZE, formulas)
    return BucketCost(options.pricing()), formulas.own()
