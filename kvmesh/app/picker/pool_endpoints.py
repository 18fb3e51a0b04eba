"""Which endpoints a pool has: its ready pods times its ports."""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from kvmesh.app.members.worker_option import parse_workers
from kvmesh.app.picker.kube_objects import OPTIONS, ROLE_LABEL, InferencePool, Pod, address_of
from kvmesh.errors import CodecError, ConfigError
from kvmesh.settings.member_name import NAME, name_of

MOST_OPTIONS: Final = 1024

Role = Literal["", "both", "prefill", "decode"]

_ROLES: Final[dict[str, Role]] = {
    "prefill": "prefill",
    "decode": "decode",
    "both": "both",
    "prefill-decode": "both",
}
"""Values of llm-d's role label that name something kvmesh does."""


class Endpoint(msgspec.Struct, frozen=True, order=True):
    """One engine of a pool. `address` is ip:port, [ip]:port for IPv6; `role` "": as it says;
    `options` are those of `--worker`.
    """

    worker: str
    address: str
    pod: str
    role: Role = ""
    options: str = ""

    def as_worker(self) -> str:
        """Return it as `--worker` takes it."""
        role = f"role={self.role}" if self.role else ""
        parts = (f"{self.worker}=http://{self.address}", role, self.options)
        return ",".join(part for part in parts if part)


class PoolEndpoints(msgspec.Struct, frozen=True):
    """The endpoints of a pool, sorted, and their addresses; `unready` of its pods get nothing,
    `wrong` says of whom what is wrong.
    """

    endpoints: tuple[Endpoint, ...] = ()
    addresses: frozenset[str] = frozenset()
    unready: int = 0
    wrong: tuple[str, ...] = ()


def find_endpoints(pool: InferencePool, pods: Iterable[Pod]) -> PoolEndpoints:
    """Return the endpoints of `pool` among `pods`. Two pods with one address: the first by name."""
    endpoints: list[Endpoint] = []
    wrong: list[str] = []
    taken: dict[str, str] = {}
    names: set[str] = set()
    unready = 0
    for pod in sorted(pods, key=lambda one: one.metadata.name):
        labels = pod.metadata.labels or {}
        if any(labels.get(key) != value for key, value in pool.labels.items()):
            continue
        try:
            address = address_of(pod)
        except CodecError as error:
            wrong.append(str(error))
            continue
        if not pod.ready or not address:
            unready += 1
            continue
        for port in pod.ports_of(pool.ports):
            at = f"{address}:{port}"
            if at in taken:
                wrong.append(f"Pod {pod.metadata.name}: {at} is that of pod {taken[at]}, too")
                continue
            taken[at] = pod.metadata.name
            worker = _worker_name(pod.metadata.name, port if len(pool.ports) > 1 else 0)
            worker = worker if worker not in names else name_of(at)
            names.add(worker)
            role = _ROLES.get(labels.get(ROLE_LABEL, ""), "")
            endpoint = Endpoint(worker, at, pod.metadata.name, role)
            try:
                endpoints.append(_with_options(endpoint, pod, address, pool.ports.index(port)))
            except ConfigError as error:
                endpoints.append(endpoint)
                wrong.append(f"Pod {pod.metadata.name}: annotation {OPTIONS}: {error}")
    return PoolEndpoints(tuple(sorted(endpoints)), frozenset(taken), unready, tuple(wrong))


def _with_options(endpoint: Endpoint, pod: Pod, address: str, index: int) -> Endpoint:
    """Return an endpoint with what its pod's annotation says. Raises `ConfigError`."""
    reported = (pod.metadata.annotations or {}).get(OPTIONS, "")
    if not reported:
        return endpoint
    if len(reported) > MOST_OPTIONS:
        raise ConfigError(f"{len(reported):,} characters: {MOST_OPTIONS} at most are taken")
    options = reported.replace("{ip}", address).replace("{index}", str(index))
    endpoint = msgspec.structs.replace(endpoint, options=options)
    parse_workers([endpoint.as_worker()])
    return endpoint


def _worker_name(pod: str, port: int) -> str:
    name = f"{pod}-{port}" if port else pod
    return name if NAME.fullmatch(name) else name_of(name)
