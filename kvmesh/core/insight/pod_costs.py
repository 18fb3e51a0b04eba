"""Which pod is marked with which cost of losing it, for a ReplicaSet that is scaled in.

Source: Kubernetes' annotation `controller.kubernetes.io/pod-deletion-cost`: of ready pods those of
least cost are deleted first; a whole number of 32 bits, 0 where there is none.
"""

import heapq
import ipaddress
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

import msgspec

from kvmesh.bounds import clamped

MOST_COST: Final = 2**31 - 1
LEAVES: Final = -MOST_COST
"""The cost of a pod whose workers drain: the ReplicaSet takes that one."""

SLACK_MS: Final = 100
NEAR: Final = 4
"""A cost that is off by less than `SLACK_MS`, or a quarter of itself, is left as it is: costs move
with every request, and each change is a write at the API server.
"""

MUCH_MS: Final = 1000
_RANK: Final = "-dp"
_MOST_KNOWN: Final = 4096


class MarkedPod(msgspec.Struct, frozen=True):
    """A pod that runs, the `canonical` addresses that it has, and the cost that it is marked with,
    None without one.
    """

    name: str
    addresses: tuple[str, ...] = ()
    cost: int | None = None


class PodWorker(msgspec.Struct, frozen=True):
    """A worker, the `canonical` address of its engine ("": none), and what losing it costs, s."""

    worker: str
    address: str
    cost_s: float
    drains: bool = False


class PodCosts(msgspec.Struct, frozen=True):
    """What each pod costs to lose, ms of prefill; `unclear` are workers at an address that several
    pods have, of whom none bears their name.
    """

    costs: dict[str, int]
    unclear: tuple[str, ...]


def canonical(text: str) -> str:
    """Return an IP address in one spelling, "" for what is none, or is one of a zone."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id:
            return ""
        address = address.ipv4_mapped or address
    return str(address)


@lru_cache(_MOST_KNOWN)
def address_in(url: str) -> str:
    """Return the `canonical` address that a URL names, "" where it names a host, or is no URL."""
    try:
        return canonical(urlsplit(url).hostname or "")
    except ValueError:
        return ""


def find_costs(pods: Iterable[MarkedPod], workers: Iterable[PodWorker]) -> PodCosts:
    """Return the cost of each pod that has workers: of the ranks of one engine the sum, `LEAVES`
    where all of them drain. O(pods + workers).
    """
    at: dict[str, dict[str, MarkedPod]] = {}
    for pod in pods:
        for address in pod.addresses:
            at.setdefault(address, {})[pod.name] = pod
    found: dict[str, list[PodWorker]] = {}
    unclear: list[str] = []
    for worker in workers:
        there = at.get(worker.address, {})
        # Pods in their node's network share its address: the sidecar bears its pod's name.
        named = worker.worker if worker.worker in there else worker.worker.rpartition(_RANK)[0]
        name = next(iter(there)) if len(there) == 1 else named
        if name in there:
            found.setdefault(name, []).append(worker)
        elif there:
            unclear.append(worker.worker)
    costs = {name: _cost(of) for name, of in found.items()}
    return PodCosts(costs, tuple(unclear))


def _cost(workers: Collection[PodWorker]) -> int:
    if all(one.drains for one in workers):
        return LEAVES
    return clamped(1000.0 * sum(one.cost_s for one in workers), 0, MOST_COST)


def find_changes(
    pods: Iterable[MarkedPod], costs: Mapping[str, int], most: int
) -> list[tuple[str, int]]:
    """Return the pods to be marked anew, each with its cost: `most` of those that are off by more
    than little, the farthest first. So a pod that drains comes first, and of pods that were never
    marked those that are dear: what is left at 0 is cheap. O(pods log `most`).
    """
    far = (
        (abs(cost - marked), name, cost)
        for name, marked, cost in _known(pods, costs)
        if _differs(marked, cost) or abs(cost - marked) > max(SLACK_MS, cost // NEAR)
    )
    return [(name, cost) for _, name, cost in heapq.nlargest(most, far)]


def misleads(pods: Iterable[MarkedPod], costs: Mapping[str, int]) -> bool:
    """Return whether a ReplicaSet that is scaled in now might take a pod that costs much more than
    the cheapest, by `MUCH_MS` and half; or one drains, or no longer, which is not marked. O(pods).
    """
    known = [(marked, cost) for _, marked, cost in _known(pods, costs)]
    if any(_differs(marked, cost) for marked, cost in known):
        return True
    staying = [(marked, cost) for marked, cost in known if cost >= 0]
    if not staying:
        return False
    first = min(marked for marked, _ in staying) + SLACK_MS
    dearest = max(cost for marked, cost in staying if marked <= first)
    return dearest > 2 * min(cost for _, cost in staying) + MUCH_MS


def _known(pods: Iterable[MarkedPod], costs: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    """Yield name, mark and cost of the pods that have one."""
    for pod in pods:
        if (cost := costs.get(pod.name)) is not None:
            yield pod.name, pod.cost or 0, cost


def _differs(marked: int, cost: int) -> bool:
    """Return whether a pod is marked as one that leaves and stays, or the other way round."""
    return (marked < 0) != (cost < 0)
