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
