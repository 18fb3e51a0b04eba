"""A cluster that a release is installed in: its pods and others around them, only described.

`table` says who reaches whom by the release's network policies.
"""

import re
import sys
from typing import Final

from tests.integration.chart.network import End, Outside, Pod, Policies, Port
from tests.integration.chart.rendering import (
    EXAMPLES,
    NAMESPACE,
    Manifest,
    containers,
    example,
    pods,
    render,
)

NAMESPACES: Final = {
    NAMESPACE: {"kvmesh/monitoring": "false"},
    "monitoring": {"kvmesh/monitoring": "true"},
    "observability": {},
    "kube-system": {},
    "gateways": {},
    "ingress-nginx": {},
    "operators": {},
    "elsewhere": {},
}
GATEWAY_LABEL: Final = "gateway.networking.k8s.io/gateway-name"
HTTP: Final = Port(8000)
RANDOM: Final = Port(40000)
"""A port nobody names: NCCL's, UCX's, a shell that an attacker opened."""
AROUND: Final[list[End]] = [
    Pod("prometheus", "monitoring", {"app": "prometheus"}, "10.244.9.1"),
    Pod(
        "collector",
        "observability",
        {"app.kubernetes.io/name": "opentelemetry-collector"},
        "10.244.9.2",
    ),
    Pod("kube-dns", "kube-system", {"k8s-app": "kube-dns"}, "10.244.9.3"),
    Pod("gateway", "gateways", {GATEWAY_LABEL: "inference-gateway"}, "10.244.9.4"),
    Pod("ingress-nginx", "ingress-nginx", {"app": "nginx"}, "10.244.9.5"),
    Pod("operator", "operators", {}, "10.244.9.6"),
    Pod("neighbour", NAMESPACE, {"app": "web"}, "10.244.9.7"),
    Pod("stranger", "elsewhere", {"app": "web"}, "10.244.9.8"),
    Pod("vllm", NAMESPACE, {"app": "vllm"}, "10.244.9.9"),
    Outside("node-local-dns", "169.254.20.10"),
    Outside("cluster-dns", "10.96.0.10"),
    Outside("api-server", "172.18.0.2"),
    Outside("gpu-machine", "10.20.0.1"),
    Outside("external-nats", "10.40.0.7"),
    Outside("cloud-metadata", "169.254.169.254"),
    Outside("internet", "203.0.113.9"),
]
"""Who is there besides the release: friends that a policy may name, and those that none should."""
ASKED: Final = {
    "collector": [Port(4318), HTTP],
    "kube-dns": [Port(53, "UDP"), Port(53)],
    "node-local-dns": [Port(53, "UDP"), Port(53)],
    "cluster-dns": [Port(53, "UDP")],
    "api-server": [Port(6443)],
    "vllm": [HTTP, Port(5557), Port(5657), RANDOM],
    "gpu-machine": [HTTP, Port(5557), Port(5657), Port(22)],
    "external-nats": [Port(4222), Port(8222)],
    "cloud-metadata": [Port(80)],
    "internet": [Port(443), RANDOM],
    "neighbour": [HTTP],
}
"""Ports of those around at which the release's pods are tried."""
ENGINE_PORTS: Final = [Port(5600), Port(6379), RANDOM]

_HASH: Final = re.compile(r"-[0-9a-f]{8}$")
"""The name of the Job that makes streams ends with a hash of what it does."""


def members(manifests: list[Manifest]) -> list[Pod]:
    """Return one pod of each workload, by the name of the workload without the release's."""
    found: list[Pod] = []
    for number, (where, template) in enumerate(pods(manifests)):
        metadata = template["metadata"]
        name = _HASH.sub("", where.partition("/")[2].removeprefix("kvmesh-"))
        if "kvmesh/engine-node" in metadata["labels"]:
            name += "-node"
        named = {
            one["name"]: Port(one["containerPort"], one.get("protocol", "TCP"))
            for container in containers(template)
            for one in container.get("ports") or ()
        }
        found.append(Pod(name, NAMESPACE, metadata["labels"], f"10.244.1.{number + 1}", named))
    return found


def ports_of(one: End) -> list[Port]:
    """Return the ports at which `one` is tried."""
    if isinstance(one, Outside) or one.name in ASKED:
        return ASKED.get(one.name, [])
    engine = {"kvmesh/engine", "kvmesh/engine-node"} & one.labels.keys()
    return sorted(
        {*one.ports.values(), *(ENGINE_PORTS if engine else [RANDOM])},
        key=lambda port: (port.number, port.protocol),
    )


def table(manifests: list[Manifest], *, blocks_have_pods: bool = False) -> list[str]:
    """Return who reaches what, a line each: `TARGET:PORT <- SOURCE, …`.

    "anybody" are all those around. Pods whose egress no policy bounds reach whatever lets them:
    they are named once, not at each target around. What nobody reaches is left out.
    """
    policies = Policies(
        manifests, NAMESPACES, blocks_have_pods=blocks_have_pods, default_namespace=NAMESPACE
    )
    own = members(manifests)
    bounded = [one for one in own if policies.selecting(one, "Egress")]
    lines = {f"{one.name} -> anything" for one in own if one not in bounded}
    for target in [*own, *AROUND]:
        near, far = (own, AROUND) if target in own else (bounded, [])
        for port in ports_of(target):
            inside = [one.name for one in near if policies.admit(one, target, port)]
            outside = [one.name for one in far if policies.admit(one, target, port)]
            if far and len(outside) == len(far):
                outside = ["anybody"]
            if who := ", ".join(sorted({*inside, *outside})):
                suffix = "/udp" if port.protocol == "UDP" else ""
                lines.add(f"{target.name}:{port.number}{suffix} <- {who}")
    return sorted(lines)


def main() -> None:
    """Print the tables of all examples, as reachability.txt holds them."""
    for name in EXAMPLES:
        lines = "\n".join(table(render(example(name))))
        sys.stdout.write(f"== {name}\n{lines}\n")


if __name__ == "__main__":
    main()
