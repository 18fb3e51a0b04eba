"""The value of each constant that other tests import: they would pass with any."""

from importlib import import_module

import pytest

VALUES: dict[str, dict[str, float]] = {
    "admission.failed_logins": {"BURST": 10.0, "MOST_CLIENTS": 1024, "REFILL_S": 6.0},
    "admission.tenant_line": {"MAX_LOOKED": 8, "MAX_OVERTAKEN": 64},
    "blocks.hash_chain": {"AHEAD": 64},
    "buckets.turns": {"HALF_LIFE_S": 60.0, "MOST_AHEAD": 8.0},
    "buckets.workerless": {"MOST_KNOWN": 1024, "REST_S": 1.0, "TRIAL_S": 0.25},
    "members.retry_budget": {"BURST": 100.0, "LEAST_PER_S": 10.0},
    "insight.prefix_families": {"HALVED_AFTER": 1024, "LEAST_SEEN": 4, "MAX_COUNTED": 8192},
    "journal.lag": {"RECENT": 1024},
    "journal.lease": {"RENEW_S": 1.0, "SAFETY_S": 0.2, "TTL_S": 3},
    "members.incarnations": {"MOST_FORMER": 8},
}


@pytest.mark.parametrize("module", VALUES)
def test_a_constant_has_the_value_that_it_had(module: str) -> None:
    found = vars(import_module(f"kvmesh.core.{module}"))

    assert {name: found[name] for name in VALUES[module]} == VALUES[module]
