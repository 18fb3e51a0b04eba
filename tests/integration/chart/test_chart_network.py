"""The chart's network policies: who reaches whom in each example, and what must."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helm_python import HelmRenderError

from tests.integration.chart.cluster import AROUND, NAMESPACES, members, table
from tests.integration.chart.configured import configured
from tests.integration.chart.network import Outside, Policies, Port
from tests.integration.chart.rendering import (
    EXAMPLES,
    HELM,
    NAMESPACE,
    changed,
    example,
    named,
    render,
)

pytestmark = pytest.mark.integration

TABLE = Path(__file__).with_name("reachability.txt")
FRIENDS = {"prometheus", "gateway", "ingress-nginx", "operator"}


def expected(name: str) -> list[str]:
    """Return the lines below `== NAME`; `python -m tests.integration.chart.cluster` prints all."""
    sections = TABLE.read_text().split("== ")
    (found,) = [one for one in sections if one.partition("\n")[0] == name]
    return found.splitlines()[1:]


@pytest.mark.parametrize("name", EXAMPLES)
def test_who_reaches_whom_is_what_the_table_says(name: str) -> None:
    assert table(render(example(name))) == expected(name)


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_is_the_same_whether_address_blocks_have_pods_or_not(name: str) -> None:
    assert table(render(example(name)), blocks_have_pods=True) == expected(name)


def rows(name: str) -> dict[str, set[str]]:
    found = table(render(example(name)))
    pairs = [line.split(" <- ") for line in found if " <- " in line]
    return {place: set(who.split(", ")) for place, who in pairs}


@pytest.mark.parametrize("name", EXAMPLES)
def test_only_the_front_door_and_the_pickers_are_for_others(name: str) -> None:
    own = {one.name for one in members(render(example(name)))}
    fronts = {"meta-router:8000"} | ({"router-chat:8000"} if name == "standalone" else set())
    for place, who in rows(name).items():
        target, _, port = place.partition(":")
        if target in own and place not in fronts:
            assert who - own <= FRIENDS, place
            if port in {"8001", "7777", "9400"}:
                assert "gateway" not in who, place


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_engine_serves_routers_of_its_own_bucket_only(name: str) -> None:
    found = rows(name)
    for one in members(render(example(name))):
        if one.labels.get("kvmesh/engine") == "true":
            routers = {who for who in found[f"{one.name}:8000"] if who.startswith("router-")}
            assert routers <= {f"router-{one.labels['kvmesh/bucket']}"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_forged_registration_leads_a_router_nowhere(name: str) -> None:
    found = rows(name)
    for place in ("cloud-metadata:80", "gpu-machine:22", "internet:40000", "neighbour:8000"):
        bounded = {who for who in found.get(place, set()) if who.startswith(("router", "picker"))}
        assert not bounded, place


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_a_process_is_configured_to_reach_it_may(name: str) -> None:
    manifests = render(example(name))
    policies = Policies(manifests, NAMESPACES, blocks_have_pods=False, default_namespace=NAMESPACE)
    (resolver,) = [one for one in AROUND if one.name == "kube-dns"]

    wishes = list(configured(manifests))

    assert {source.name for source, _, _, _ in wishes} >= {"router-chat"} & {
        one.name for one in members(manifests)
    }
    for source, target, port, why in wishes:
        assert policies.admit(source, target, Port(port)), (source.name, target.name, why)
        assert policies.admit(source, resolver, Port(53, "UDP")), source.name


def test_each_meta_router_reaches_each_router_and_routers_of_a_bucket_each_other() -> None:
    found = rows("production")

    for bucket in ("chat", "code"):
        assert {"meta-router", f"router-{bucket}"} <= found[f"router-{bucket}:8000"]
    assert "router-code" not in found["router-chat:8000"]


def test_the_admin_port_is_closed_to_all_but_who_is_named() -> None:
    assert rows("production")["meta-router:8001"] == {"prometheus"}
    assert rows("secure")["meta-router:8001"] == {"prometheus", "operator"}
    without = changed(example("secure"), networkPolicy__adminFrom=[])
    lines = table(render(without))
    assert "meta-router:8001 <- prometheus" in lines


def test_an_agent_for_traces_and_node_local_dns_are_reached_where_the_values_say_so() -> None:
    values = example("observability")

    assert "collector:4318" in rows("observability")
    assert "node-local-dns:53/udp" in rows("observability")
    without = table(render(changed(values, networkPolicy__dns__nodeLocal__enabled=False)))
    assert not [line for line in without if line.startswith("node-local-dns")]


def test_events_of_eight_ranks_pass_and_of_a_ninth_none() -> None:
    policies = [one for one in render(example("standalone")) if one["kind"] == "NetworkPolicy"]
    ranges = re.findall(r'"endPort": (\d+), "port": (\d+)', json.dumps(policies, sort_keys=True))

    assert {*ranges} == {("5564", "5557"), ("5664", "5657")}


def test_traces_to_an_unnamed_collector_go_to_its_port_alone() -> None:
    otlp = {"endpoint": "http://c:4317", "namespaceLabels": {}, "podLabels": {}}
    manifests = render(changed(example("observability"), networkPolicy__otlp=otlp))
    policies = Policies(manifests, NAMESPACES, blocks_have_pods=False)
    (router,) = [one for one in members(manifests) if one.name == "router-chat"]
    away = Outside("collector", "198.51.100.4")

    assert policies.admit(router, away, Port(4317))
    assert not policies.admit(router, away, Port(4318))


@pytest.mark.parametrize(
    ("name", "changes", "remedy"),
    [
        (
            "external-nats",
            {"networkPolicy__externalNats__cidrs": []},
            r"networkPolicy\.externalNats",
        ),
        (
            "existing-engines",
            {"networkPolicy__externalEngines": []},
            r"networkPolicy\.externalEngines",
        ),
        (
            "production",
            {"metaRouter__settings": {"site": "eu", "peer_site": ["us=https://us.example"]}},
            r"networkPolicy\.peerSites",
        ),
        ("secure", {"auth__tls__certManager__issuerRef__name": ""}, r"issuerRef\.name"),
        ("secure", {"auth__tls__certManager__enabled": False}, r"existingSecret"),
        (
            "secure",
            {"auth__tls__clientCaSecret": "ca", "metaRouter": {"adminPort": None}},
            r"enable adminPort",
        ),
        ("gateway", {"gateway__httpRoute__parentRefs": []}, r"parentRefs"),
        ("gateway", {"buckets__chat__picker__replicas": 0}, r"no bucket has a picker"),
        ("secure", {"gateway__ingress__hosts": []}, r"gateway\.ingress\.hosts"),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(
    name: str, changes: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(HelmRenderError, match=remedy):
        render(changed(example(name), **changes))


def test_only_meta_routers_may_reach_the_doors_of_other_sites() -> None:
    sites = {
        "metaRouter__settings": {"site": "eu", "peer_site": ["us=https://us.example"]},
        "networkPolicy__peerSites": [{"cidr": "203.0.113.7/32", "ports": [443]}],
    }
    policies = named(render(changed(example("production"), **sites)), "NetworkPolicy")

    door = {"to": [{"ipBlock": {"cidr": "203.0.113.7/32"}}], "ports": [{"port": 443}]}
    may = {name for name, one in policies.items() if door in one["spec"].get("egress", ())}
    assert may == {"kvmesh-meta-router"}


def test_without_policies_none_is_rendered() -> None:
    manifests = render(changed(example("production"), networkPolicy__enabled=False))

    assert named(manifests, "NetworkPolicy") == {}


def test_the_page_shows_the_table_of_its_example() -> None:
    page = (HELM.parents[1] / "docs/operate/chart-edge.md").read_text()
    (block,) = [one for one in page.split("```") if "meta-router:8001 <-" in one]

    assert block.strip().splitlines() == expected("secure")
    named_there = set(re.findall(r"`([a-z-]+)\.yaml`", page))
    assert set(EXAMPLES) <= named_there, "an example that the page does not list"
