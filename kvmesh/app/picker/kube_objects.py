"""Objects of the API server as far as they are read: pods, InferencePools, InferenceObjectives.

Source: api/v1/inferencepool_types.go of kubernetes-sigs/gateway-api-inference-extension,
apix/v1alpha2/inferenceobjective_types.go of llm-d/llm-d-router (both read 2026-08).
"""

import ipaddress
import re
from typing import Annotated, Final, Literal, TypeVar, cast

import msgspec
from msgspec import Meta

from kvmesh.bounds import MAX_NAMES, UNREADABLE, MaybeName, Name, Text, whole_number
from kvmesh.errors import CodecError

MAX_OBJECT_NAME: Final = 253
MAX_PRIORITY_GIVEN: Final = 2**31
MOST_PORT: Final = 65535

ROLE_LABEL: Final = "llm-d.ai/role"
ACTIVE_PORTS: Final = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")
"""Annotations of a pod that serves only some of its pool's ports, the first one counts."""

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
"""Annotation of a pod: a ReplicaSet that is scaled in deletes those of the least number first."""

OPTIONS: Final = "kvmesh/worker-options"
"""Annotation of a pod: what `--worker` takes behind the URL, with {ip}, and {index} of the port."""

ObjectName = Annotated[str, Meta(min_length=1, max_length=MAX_OBJECT_NAME)]
LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
OBJECT: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""Kubernetes' names: of a namespace, of an object."""

LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
PortNumber = Annotated[int, Meta(ge=1, le=MOST_PORT)]
Labels = Annotated[dict[MaybeName, Text], Meta(max_length=MAX_NAMES)]

ObjectT = TypeVar("ObjectT")


class Collection(msgspec.Struct, frozen=True):
    """One kind of objects at the API server; `group` "" is the core."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str) -> str:
        """Return the path of those in a namespace."""
        api = f"apis/{self.group}" if self.group else "api"
        return f"/{api}/{self.version}/namespaces/{namespace}/{self.plural}"

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}/{self.version}" if self.group else self.plural


PODS: Final = Collection("", "v1", "pods")
POOLS: Final = Collection("inference.networking.k8s.io", "v1", "inferencepools")
OBJECTIVES: Final = (
    Collection("llm-d.ai", "v1alpha2", "inferenceobjectives"),
    Collection("inference.networking.x-k8s.io", "v1alpha2", "inferenceobjectives"),
)
"""Where objectives are kept: since 2026 by llm-d, before by the extension itself."""


class ObjectMeta(msgspec.Struct, frozen=True, rename="camel"):
    """What all objects have."""

    name: ObjectName
    resource_version: MaybeName = ""
    labels: Labels | None = None
    annotations: dict[str, str] | None = None
    deletion_timestamp: MaybeName | None = None


class _Named(msgspec.Struct, frozen=True):
    metadata: ObjectMeta


class PodCondition(msgspec.Struct, frozen=True):
    """One condition of a pod."""

    type: Name
    status: Name


class _PodIp(msgspec.Struct, frozen=True):
    ip: MaybeName = ""


class PodStatus(msgspec.Struct, frozen=True):
    """What the kubelet says of a pod."""

    phase: MaybeName = ""
    pod_ip: MaybeName = msgspec.field(name="podIP", default="")
    pod_ips: Annotated[tuple[_PodIp, ...], Meta(max_length=MAX_NAMES)] | None = msgspec.field(
        name="podIPs", default=None
    )
    conditions: Annotated[tuple[PodCondition, ...], Meta(max_length=MAX_NAMES)] | None = None


class Pod(msgspec.Struct, frozen=True):
    """A pod, perhaps one that runs an engine."""

    metadata: ObjectMeta
    status: PodStatus = PodStatus()

    @property
    def runs(self) -> bool:
        """Return whether it has not ended, and is not being deleted: its addresses are its own."""
        ended = self.status.phase in {"Succeeded", "Failed"}
        return not ended and self.metadata.deletion_timestamp is None

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return its addresses as the kubelet writes them, "" where it writes none."""
        return (self.status.pod_ip, *(one.ip for one in self.status.pod_ips or ()))

    @property
    def ready(self) -> bool:
        """Return whether it may be given requests: its readiness probe passes, and it stays."""
        if self.metadata.deletion_timestamp is not None:
            return False
        found = {one.type: one.status for one in self.status.conditions or ()}
        return found.get("Ready") == "True"

    def ports_of(self, ports: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of its pool's ports that it serves: all, unless an annotation names some."""
        annotations = self.metadata.annotations or {}
        listed = next((annotations[name] for name in ACTIVE_PORTS if name in annotations), None)
        if listed is None:
            return ports
        named = {whole_number(word.strip(), 1, MOST_PORT) for word in listed.split(",")[:MAX_NAMES]}
        return tuple(port for port in ports if port in named)


class _TargetPort(msgspec.Struct, frozen=True):
    number: PortNumber


_LabelKey = Annotated[str, Meta(max_length=317, pattern=r"^[A-Za-z0-9./_-]+$")]
_LabelValue = Annotated[str, Meta(max_length=63, pattern=r"^[A-Za-z0-9._-]*$")]
"""Neither can be read as more than itself where a selector is written out."""


class _Selector(msgspec.Struct, frozen=True, rename="camel"):
    match_labels: Annotated[dict[_LabelKey, _LabelValue], Meta(min_length=1, max_length=64)]


class PickerRef(msgspec.Struct, frozen=True, rename="camel"):
    """The service that the gateway asks, and what it does while nobody answers there."""

    name: ObjectName
    failure_mode: Literal["FailOpen", "FailClose"] = "FailClose"


class _PoolSpec(msgspec.Struct, frozen=True, rename="camel"):
    selector: _Selector
    target_ports: Annotated[tuple[_TargetPort, ...], Meta(min_length=1, max_length=8)]
    app_protocol: Literal["http", "kubernetes.io/h2c"] = "http"
    endpoint_picker_ref: PickerRef | None = None


class InferencePool(msgspec.Struct, frozen=True):
    """The pods that serve a model, and the picker that chooses among them."""

    metadata: ObjectMeta
    spec: _PoolSpec

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels that its pods have."""
        return self.spec.selector.match_labels

    @property
    def ports(self) -> tuple[int, ...]:
        """Return the ports of each pod that are endpoints, each once."""
        return tuple(dict.fromkeys(one.number for one in self.spec.target_ports))


class _PoolRef(msgspec.Struct, frozen=True):
    name: ObjectName
    group: MaybeName = POOLS.group


class _ObjectiveSpec(msgspec.Struct, frozen=True, rename="camel"):
    pool_ref: _PoolRef
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY_GIVEN, lt=MAX_PRIORITY_GIVEN)] | None = None


class InferenceObjective(msgspec.Struct, frozen=True):
    """How urgent requests are that name it; a larger priority is served first."""

    metadata: ObjectMeta
    spec: _ObjectiveSpec

    def is_of(self, pool: str) -> bool:
        """Return whether it is for the pool of that name."""
        return (self.spec.pool_ref.group, self.spec.pool_ref.name) == (POOLS.group, pool)


def read(kind: type[ObjectT], data: msgspec.Raw) -> ObjectT:
    """Return an object. Raises `CodecError` naming it and the field that is wrong."""
    try:
        return msgspec.json.decode(data, type=kind)
    except UNREADABLE as error:
        raise CodecError(f"{kind.__name__} {name_in(data) or 'without a name'}: {error}") from error


def name_in(data: msgspec.Raw) -> str:
    """Return the name of an object of any kind, "" for none that may be one."""
    try:
        return msgspec.json.decode(data, type=_Named).metadata.name
    except UNREADABLE:
        return ""


def address_of(pod: Pod) -> str:
    """Return a pod's IP address as a URL has it, "" while it has none.

    Raises `CodecError` for what is no address: it would be looked up, and lead anywhere.
    """
    given = pod.status.pod_ip
    if not given:
        return ""
    try:
        address = ipaddress.ip_address(given)
    except ValueError as error:
        raise CodecError(f"Pod {pod.metadata.name}: its podIP is no IP address: {error}") from error
    if "%" in given:
        raise CodecError(f"Pod {pod.metadata.name}: its podIP names a zone: {given[:64]!r}")
    return f"[{address}]" if cast("int", address.version) == 6 else str(address)  # noqa: PLR2004  IPv6
