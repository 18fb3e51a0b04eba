"""The evaluator of NetworkPolicies, against cases worked out by hand from the API's reference."""

from typing import Any

import pytest

from tests.integration.chart.network import Outside, Pod, Policies, Port, in_block, selects

Manifest = dict[str, Any]
NAMESPACES = {"mesh": {}, "watch": {"monitoring": "true"}, "other": {}}
HTTP = Port(8000)
WEB = Pod("web", "mesh", {"app": "web"}, "10.244.0.3", {"http": HTTP})
DB = Pod("db", "mesh", {"app": "db"}, "10.244.0.4", {"sql": Port(5432)})
PROMETHEUS = Pod("prometheus", "watch", {"app": "prometheus"}, "10.244.1.9")
NEIGHBOUR = Pod("neighbour", "other", {"app": "web"}, "10.244.2.2")
INTERNET = Outside("internet", "203.0.113.9")


def policy(selector: Manifest, **spec: Any) -> Manifest:
    return {
        "kind": "NetworkPolicy",
        "metadata": {"name": "one", "namespace": "mesh"},
        "spec": {"podSelector": selector, **spec},
    }


def policies(*found: Manifest, blocks_have_pods: bool = False) -> Policies:
    return Policies(list(found), NAMESPACES, blocks_have_pods=blocks_have_pods)


def only(app: str) -> Manifest:
    return {"matchLabels": {"app": app}}


def test_without_a_policy_everything_is_open() -> None:
    assert policies().admit(INTERNET, DB, Port(5432))
    assert policies().admit(DB, INTERNET, Port(443))


def test_a_policy_without_rules_closes_the_pods_it_selects_and_no_others() -> None:
    closed = policies(policy(only("db")))

    assert not closed.admit(WEB, DB, Port(5432))
    assert closed.admit(DB, WEB, HTTP), "no egress rule: egress stays open"
    assert closed.admit(DB, INTERNET, Port(443))


def test_a_policy_of_another_namespace_counts_for_nothing() -> None:
    elsewhere = policy({}) | {"metadata": {"name": "one", "namespace": "other"}}

    assert policies(elsewhere).admit(WEB, DB, Port(5432))
    assert not policies(elsewhere).admit(WEB, NEIGHBOUR, HTTP)


def test_a_policy_without_a_namespace_lies_in_the_default_one() -> None:
    nowhere = policy({}) | {"metadata": {"name": "one"}}
    there = Policies([nowhere], NAMESPACES, blocks_have_pods=False, default_namespace="mesh")

    assert not there.admit(WEB, DB, Port(5432))
    assert policies(nowhere).admit(WEB, DB, Port(5432))


def test_rules_of_several_policies_add_up() -> None:
    closed = policy(only("db"))
    opened = policy(only("db"), ingress=[{"from": [{"podSelector": only("web")}]}])

    assert policies(closed, opened).admit(WEB, DB, Port(5432))
    assert not policies(closed, opened).admit(PROMETHEUS, DB, Port(5432))


def test_both_ends_must_agree() -> None:
    egress = policy(
        only("web"), policyTypes=["Egress"], egress=[{"to": [{"podSelector": only("db")}]}]
    )
    ingress = policy(only("db"), ingress=[{"from": [{"podSelector": only("other")}]}])

    assert policies(egress).admit(WEB, DB, Port(5432))
    assert not policies(egress, ingress).admit(WEB, DB, Port(5432))
    assert not policies(egress).admit(WEB, INTERNET, Port(443))
    assert policies(egress).admit(PROMETHEUS, WEB, HTTP), "ingress of web is not mentioned"


def test_an_egress_rule_alone_makes_both_directions_count() -> None:
    both = policies(policy(only("web"), egress=[{"to": [{"podSelector": only("db")}]}]))

    assert not both.admit(PROMETHEUS, WEB, HTTP), "policyTypes defaults to Ingress as well"
    assert not both.admit(WEB, INTERNET, Port(443))


@pytest.mark.parametrize(
    ("peer", "admitted"),
    [
        ({"podSelector": {}}, {"db"}),
        ({"podSelector": only("web")}, set()),
        ({"namespaceSelector": {}}, {"db", "prometheus", "neighbour"}),
        ({"namespaceSelector": {"matchLabels": {"monitoring": "true"}}}, {"prometheus"}),
        (
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}},
            {"neighbour"},
        ),
        ({"namespaceSelector": {}, "podSelector": only("web")}, {"neighbour"}),
        (
            {
                "namespaceSelector": {"matchLabels": {"monitoring": "true"}},
                "podSelector": only("web"),
            },
            set(),
        ),
        ({"ipBlock": {"cidr": "203.0.113.0/24"}}, {"internet"}),
        ({"ipBlock": {"cidr": "0.0.0.0/0", "except": ["203.0.113.0/28"]}}, set()),
    ],
)
def test_a_peer_is_who_it_selects(peer: Manifest, admitted: set[str]) -> None:
    opened = policies(policy(only("web"), ingress=[{"from": [peer]}]))

    found = {
        one.name for one in (DB, PROMETHEUS, NEIGHBOUR, INTERNET) if opened.admit(one, WEB, HTTP)
    }

    assert found == admitted


def test_whether_an_ip_block_has_pods_is_the_plugins_affair() -> None:
    block = policy(only("web"), ingress=[{"from": [{"ipBlock": {"cidr": "10.244.0.0/16"}}]}])

    assert not policies(block).admit(DB, WEB, HTTP)
    assert policies(block, blocks_have_pods=True).admit(DB, WEB, HTTP)


@pytest.mark.parametrize(
    ("ports", "admitted"),
    [
        (None, {("TCP", 8000), ("TCP", 9000), ("UDP", 53)}),
        ([], {("TCP", 8000), ("TCP", 9000), ("UDP", 53)}),
        ([{"port": 8000}], {("TCP", 8000)}),
        ([{"port": "http"}], {("TCP", 8000)}),
        ([{"port": "grpc"}], set()),
        ([{"port": "http", "protocol": "UDP"}], set()),
        ([{"protocol": "TCP"}], {("TCP", 8000), ("TCP", 9000)}),
        ([{"port": 8000, "endPort": 9000}], {("TCP", 8000), ("TCP", 9000)}),
        ([{"port": 53, "protocol": "UDP"}], {("UDP", 53)}),
    ],
)
def test_a_port_is_what_it_names(
    ports: list[Manifest] | None, admitted: set[tuple[str, int]]
) -> None:
    rule: Manifest = {} if ports is None else {"ports": ports}
    asked = [Port(8000), Port(9000), Port(53, "UDP")]

    opened = policies(policy(only("web"), ingress=[rule]))

    assert {(one.protocol, one.number) for one in asked if opened.admit(DB, WEB, one)} == admitted


def test_a_named_port_of_an_egress_rule_is_the_targets() -> None:
    rule = {"to": [{"podSelector": only("db")}], "ports": [{"port": "sql"}]}
    opened = policies(policy(only("web"), policyTypes=["Egress"], egress=[rule]))

    assert opened.admit(WEB, DB, Port(5432))
    assert not opened.admit(WEB, DB, HTTP)


@pytest.mark.parametrize(
    ("term", "taken"),
    [
        ({"key": "app", "operator": "In", "values": ["web", "db"]}, True),
        ({"key": "app", "operator": "In", "values": ["db"]}, False),
        ({"key": "app", "operator": "NotIn", "values": ["db"]}, True),
        ({"key": "tier", "operator": "NotIn", "values": ["db"]}, True),
        ({"key": "app", "operator": "Exists"}, True),
        ({"key": "tier", "operator": "Exists"}, False),
        ({"key": "tier", "operator": "DoesNotExist"}, True),
        ({"key": "app", "operator": "DoesNotExist"}, False),
    ],
)
def test_expressions_of_selectors(term: Manifest, *, taken: bool) -> None:
    assert selects({"matchExpressions": [term]}, {"app": "web"}) == taken
    assert not selects({"matchLabels": {"app": "x"}, "matchExpressions": [term]}, {"app": "web"})


def test_what_the_api_server_would_refuse_is_an_error_here() -> None:
    with pytest.raises(ValueError, match="no operator"):
        selects({"matchExpressions": [{"key": "a", "operator": "Is"}]}, {})
    with pytest.raises(ValueError, match="strictly within"):
        in_block({"cidr": "10.0.0.0/8", "except": ["192.168.0.0/16"]}, "10.0.0.1")
    with pytest.raises(ValueError, match="must name something"):
        policies(policy(only("web"), ingress=[{"from": [{}]}])).admit(DB, WEB, HTTP)
    both = {"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}
    with pytest.raises(ValueError, match="no selectors"):
        policies(policy(only("web"), ingress=[{"from": [both]}])).admit(DB, WEB, HTTP)


def test_policies_that_apply_are_named() -> None:
    closed = policies(policy(only("db")))

    assert closed.selecting(DB, "Ingress") == ["one"]
    assert closed.selecting(DB, "Egress") == []
    assert closed.selecting(WEB, "Ingress") == []
