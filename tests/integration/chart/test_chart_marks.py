"""Routers that mark engine pods: what they may do, and only where it is switched on."""

from typing import Any

import pytest

from tests.integration.chart.rendering import EXAMPLES, example, named, render

pytestmark = pytest.mark.integration

ON: dict[str, Any] = {"markPods": {"enabled": True}}
API_SERVER = {"ports": [{"port": 443}, {"port": 6443}]}
PICKED = {"replicas": 0, "picker": {"replicas": 2}}


def marks(template: dict[str, Any]) -> bool:
    env = template["spec"]["template"]["spec"]["containers"][0]["env"]
    return {"name": "KVMESH_MARK_PODS", "value": "true"} in env


@pytest.mark.parametrize("name", EXAMPLES)
def test_who_may_change_pods_is_there_where_it_is_switched_on_alone(name: str) -> None:
    values = example(name)

    manifests = render(values)

    wanted = values.get("markPods", {}).get("enabled", False)
    verbs = [verb for role in named(manifests, "Role").values() for verb in verbs_of(role)]
    assert ("patch" in verbs) is wanted
    assert bool(named(manifests, "ValidatingAdmissionPolicy")) is wanted


def verbs_of(role: dict[str, Any]) -> list[str]:
    return [verb for rule in role["rules"] for verb in rule["verbs"]]


def test_a_bucket_s_routers_mark_or_its_pickers_where_there_are_none() -> None:
    manifests = render(ON | {"buckets": {"chat": {"picker": {"replicas": 2}}, "code": PICKED}})

    deployments = named(manifests, "Deployment")
    assert {name for name, one in deployments.items() if marks(one)} == {
        *("kvmesh-router-chat", "kvmesh-picker-code")
    }
    pods = {name: one["spec"]["template"]["spec"] for name, one in deployments.items()}
    accounts = {pods[name]["serviceAccountName"] for name, one in deployments.items() if marks(one)}
    binding = named(manifests, "RoleBinding")["kvmesh-mark-pods"]
    assert {one["name"] for one in binding["subjects"]} == accounts
    (policy,) = named(manifests, "ValidatingAdmissionPolicy").values()
    (by,) = policy["spec"]["matchConditions"]
    for account in accounts:
        assert account in named(manifests, "ServiceAccount")
        assert f'"system:serviceaccount:kvmesh:{account}"' in by["expression"]
    assert pods["kvmesh-router-chat"]["automountServiceAccountToken"]
    policies = named(manifests, "NetworkPolicy")
    assert API_SERVER in policies["kvmesh-router-chat"]["spec"]["egress"]
    assert API_SERVER in policies["kvmesh-picker-code"]["spec"]["egress"]


def test_pickers_alone_need_no_further_account() -> None:
    manifests = render(ON | {"buckets": {"code": PICKED}})

    (subject,) = named(manifests, "RoleBinding")["kvmesh-mark-pods"]["subjects"]
    assert subject["name"] == "kvmesh-picker"
    assert set(named(manifests, "ServiceAccount")) == {"kvmesh-picker"}


def test_routers_that_find_their_engines_may_still_list_these() -> None:
    manifests = render(ON | {"discovery": {"enabled": True}, "engines": {"q": {"kind": "mocker"}}})

    spec = named(manifests, "Deployment")["kvmesh-router-default"]["spec"]["template"]["spec"]
    discovery = named(manifests, "RoleBinding")["kvmesh-discovery"]
    assert spec["serviceAccountName"] == "kvmesh-mark-pods"
    assert "kvmesh-mark-pods" in [one["name"] for one in discovery["subjects"]]


def test_the_policy_of_the_whole_cluster_can_be_left_out() -> None:
    manifests = render({"markPods": {"enabled": True, "admissionPolicy": False}})

    kinds = {one["kind"] for one in manifests}
    assert "Role" in kinds
    assert not any(kind.startswith("Validating") for kind in kinds)


@pytest.mark.parametrize("bucket", [{"replicas": 2}, {"autoscaling": {"enabled": True}}])
def test_routers_that_know_nothing_of_each_other_do_not_mark_together(
    bucket: dict[str, Any],
) -> None:
    values = ON | {"mode": "standalone", "buckets": {"chat": bucket}}

    with pytest.raises(Exception, match="markPods: in mode standalone each router knows its own"):
        render(values)

    alone = values | {"buckets": {"chat": {"replicas": 1}}}
    assert marks(named(render(alone), "Deployment")["kvmesh-router-chat"])
