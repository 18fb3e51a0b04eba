"""The value of each constant that other tests import: they would pass with any."""

from importlib import import_module

import pytest

VALUES: dict[str, dict[str, float | bytes]] = {
    "actors.meta_router": {"MOST_EARLY": 4096},
    "actors.static_registry": {"CHECK_S": 1.0},
    "app.picker.kube_api": {"MOST_OBJECTS": 65536, "MOST_PAGES": 1024},
    "app.process.memory": {"MOST_BODIES": 1 << 30},
    "app.prompts.turn_names": {"MAX_PROGRAM": 256},
    "app.router.pod_marks": {"MOST_CHANGES": 32},
    "app.serve.prefix_sender": {"MOST_FAILED": 3},
    "app.serve.prompt_keeper": {"MOST_FRESH": 256, "MOST_FRESH_BYTES": 32 << 20},
    "app.views.spare_time": {"LEAST_UNITS": 128},
    "app.views.top_view": {"WINDOW_S": 60},
    "app.views.traffic_rows": {"MOST_ROWS": 128},
    "bounds": {
        "MAX_CHOICES": 1 << 15,
        "MAX_NAMES": 1024,
        "MAX_ORDINAL": 1 << 62,
        "MAX_PRIORITY": 1 << 15,
    },
    "core.admission.failed_logins": {"BURST": 10.0, "MOST_CLIENTS": 1024, "REFILL_S": 6.0},
    "core.admission.shares": {"MAX_ROWS": 64},
    "core.admission.tenant_line": {"MAX_LOOKED": 8, "MAX_OVERTAKEN": 64},
    "core.blocks.hash_chain": {"AHEAD": 64},
    "core.buckets.beginnings": {"MOST_ENDS": 32},
    "core.buckets.homes": {"MOST_HOMES": 8},
    "core.buckets.turns": {"HALF_LIFE_S": 60.0, "MOST_AHEAD": 8.0},
    "core.buckets.workerless": {"MOST_KNOWN": 1024, "REST_S": 1.0, "TRIAL_S": 0.25},
    "core.cost.adapters": {"DEFAULT_LOAD_MS": 100.0, "MOST_LOAD_MS": 60_000.0, "MOST_SLOTS": 1024},
    "core.cost.own": {"FAULTS_OFF": 5},
    "core.cost.weights": {"MOST_WEIGHTS": 32},
    "core.engines.load": {"MAX_RANKS": 1024},
    "core.index.snapshot_manifest": {"GENERATIONS": 3},
    "core.index.snapshot_writing": {"MAGIC": b"KVMINDX\x01"},
    "core.insight.decision_lines": {"MOST_SHOWN": 16},
    "core.insight.pod_costs": {"LEAVES": 1 - 2**31, "MOST_COST": 2**31 - 1},
    "core.insight.prefix_families": {"HALVED_AFTER": 1024, "LEAST_SEEN": 4, "MAX_COUNTED": 8192},
    "core.insight.rollout": {"MOST_HISTORY": 32},
    "core.journal.lag": {"RECENT": 1024},
    "core.journal.lease": {"RENEW_S": 1.0, "SAFETY_S": 0.2, "TTL_S": 3},
    "core.journal.replica": {"MOST_WORKERS": 4096},
    "core.members.incarnations": {"MOST_FORMER": 8},
    "core.members.noted_failures": {"REQUESTS_REMEMBERED": 1024},
    "core.members.retry_budget": {"BURST": 100.0, "LEAST_PER_S": 10.0},
    "core.members.url_guard": {"MOST": 64},
    "core.prompts.byte_tokenizer": {"TOOLS_ID": 256},
    "core.prompts.parity": {"MOST_MODELS": 256},
    "core.routing.choice.slo_judge": {"MOST_RETRY_S": 3600},
    "core.warming.kept_prompts": {"FRESH_S": 300.0},
    "core.warming.returns": {"MOST_SAMPLES": 4096.0},
    "transport.grpc.session_events": {
        "ENHANCE_YOUR_CALM": 11,
        "INTERNAL": 13,
        "INVALID_ARGUMENT": 3,
        "PROTOCOL_ERROR": 1,
    },
    "transport.nats.trust.alarms": {"MOST_SKEWS": 64},
}


@pytest.mark.parametrize("module", VALUES)
def test_a_constant_has_the_value_that_it_had(module: str) -> None:
    found = vars(import_module(f"kvmesh.{module}"))

    assert {name: found[name] for name in VALUES[module]} == VALUES[module]
