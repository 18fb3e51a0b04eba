"""Who may reach whom by a set of NetworkPolicies: their semantics, over pods only described.

Source: the `networking.k8s.io/v1` API as its reference documents it. A pod that no policy of a
direction selects is open in that direction; one that some do is open to what any of their rules
names. A connection needs both ends. Not modelled: a node always reaches its own pods (probes do).
"""

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Manifest = dict[str, Any]
NAME_LABEL: Final = "kubernetes.io/metadata.name"
"""Every namespace has this label, whose value is its name."""


@dataclass(frozen=True)
class Port:
    """A port a connection goes to; `protocol` is TCP, UDP or SCTP."""

    number: int
    protocol: str = "TCP"


@dataclass(frozen=True)
class Pod:
    """One end of a connection that runs in the cluster's pod network."""

    name: str
    namespace: str
    labels: Mapping[str, str]
    address: str = "10.244.0.2"
    ports: Mapping[str, Port] = field(default_factory=dict[str, Port])
    """Named ports of its containers."""


@dataclass(frozen=True)
class Outside:
    """An address that is no pod's: a node (so hostNetwork, NodeLocal DNS), a VM, the internet."""

    name: str
    address: str


End = Pod | Outside


class Policies:
    """The NetworkPolicies of some manifests.

    Whether an `ipBlock` covers pods is left to the network plugin: Calico's does, Cilium's does
    not. `blocks_have_pods` says which is meant.
    """

    def __init__(
        self,
        manifests: list[Manifest],
        namespaces: Mapping[str, Mapping[str, str]],
        *,
        blocks_have_pods: bool,
        default_namespace: str = "default",
    ) -> None:
        self._policies = [one for one in manifests if one["kind"] == "NetworkPolicy"]
        self._namespaces = {
            name: {**labels, NAME_LABEL: name} for name, labels in namespaces.items()
        }
        self._blocks_have_pods = blocks_have_pods
        self._default = default_namespace

    def admit(self, source: End, target: End, port: Port) -> bool:
        """Return whether `source` may open a connection to `port` of `target`."""
        return self._open(source, target, port, target, "Egress") and self._open(
            target, source, port, target, "Ingress"
        )

    def selecting(self, pod: Pod, direction: str) -> list[str]:
        """Return the names of the policies that apply to `pod` in `direction`."""
        return [one["metadata"]["name"] for one in self._of(pod, direction)]

    def _of(self, pod: Pod, direction: str) -> Iterator[Manifest]:
        for policy in self._policies:
            spec = policy["spec"]
            here = policy["metadata"].get("namespace", self._default) == pod.namespace
            if here and direction in types_of(spec) and selects(spec["podSelector"], pod.labels):
                yield policy

    def _open(self, own: End, other: End, port: Port, target: End, direction: str) -> bool:
        if isinstance(own, Outside):
            return True
        applied = list(self._of(own, direction))
        if not applied:
            return True
        rules, peers = ("ingress", "from") if direction == "Ingress" else ("egress", "to")
        return any(
            self._peers(rule.get(peers), other, own.namespace)
            and covers(rule.get("ports"), port, target)
            for policy in applied
            for rule in policy["spec"].get(rules) or ()
        )

    def _peers(self, peers: list[Manifest] | None, other: End, namespace: str) -> bool:
        return not peers or any(self._is_peer(peer, other, namespace) for peer in peers)

    def _is_peer(self, peer: Manifest, other: End, namespace: str) -> bool:
        if "ipBlock" in peer:
            if set(peer) != {"ipBlock"}:
                raise ValueError(f"{peer}: a peer with ipBlock has no selectors")
            if isinstance(other, Pod) and not self._blocks_have_pods:
                return False
            return in_block(peer["ipBlock"], other.address)
        if not peer:
            raise ValueError("a peer of a rule must name something")
        if isinstance(other, Outside):
            return False
        if "namespaceSelector" in peer:
            if not selects(peer["namespaceSelector"], self._namespaces[other.namespace]):
                return False
        elif other.namespace != namespace:
            return False
        return selects(peer.get("podSelector", {}), other.labels)


def types_of(spec: Manifest) -> list[str]:
    """Return a policy's directions: Ingress unless it says otherwise, Egress if it has a rule."""
    default = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
    return spec.get("policyTypes") or default


def selects(selector: Manifest, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector takes `labels`; an empty one takes all."""
    wanted: Mapping[str, str] = selector.get("matchLabels") or {}
    return wanted.items() <= labels.items() and all(
        _meets(term, labels) for term in selector.get("matchExpressions") or ()
    )


def _meets(term: Manifest, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(term["key"]), term.get("values", [])
    match term["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case other:
            raise ValueError(f"{other}: no operator of label selectors")


def in_block(block: Manifest, address: str) -> bool:
    """Return whether an ipBlock has `address`. Raises `ValueError` for an `except` outside it."""
    cidr = ipaddress.ip_network(block["cidr"])
    holes = [ipaddress.ip_network(hole) for hole in block.get("except") or ()]
    for hole in holes:
        if hole.version != cidr.version or hole == cidr or hole.network_address not in cidr:
            raise ValueError(f"{block}: what is excepted must lie strictly within the cidr")
    one = ipaddress.ip_address(address)
    return one in cidr and not any(one in hole for hole in holes)


def covers(ports: list[Manifest] | None, port: Port, target: End) -> bool:
    """Return whether a rule's ports have `port` of `target`; without a list they have all."""
    return not ports or any(_covers(one, port, target) for one in ports)


def _covers(one: Manifest, port: Port, target: End) -> bool:
    named = one.get("port")
    protocol = one.get("protocol", "TCP")
    if isinstance(named, str):
        known = target.ports.get(named) if isinstance(target, Pod) else None
        return known == port and protocol == port.protocol
    if protocol != port.protocol:
        return False
    if named is None:
        return True
    last = one.get("endPort") or named
    return int(named) <= port.number <= int(last)
