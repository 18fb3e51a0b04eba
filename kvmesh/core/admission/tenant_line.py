"""What one tenant has waiting, by policy and by how much of it is cached."""

from collections.abc import Container
from itertools import islice
from typing import Final

from sortedcontainers import SortedDict

MAX_LOOKED: Final = 8
"""Requests of a tenant looked up for one place."""

MAX_OVERTAKEN: Final = 64
"""So many later requests of its tenant may go before the oldest; then that is next."""

Order = tuple[float, int, int]
"""What the policy says, blocks cached (negative), order of arrival: the least is next."""


class TenantLine:
    """One tenant's requests, by `Order` and by arrival; `key` is its account, and `overtaken` of
    later ones went before the oldest.
    """

    def __init__(self, key: int) -> None:
        self.key = key
        self.overtaken = 0
        self._orders: dict[str, Order] = {}
        self._sorted: SortedDict[Order, str] = SortedDict()

    def __len__(self) -> int:
        return len(self._orders)

    def enter(self, request_id: str, policy: float, arrival: int) -> None:
        """Add a request, of which nothing is known to be cached."""
        order = policy, 0, arrival
        self._orders[request_id] = order
        self._sorted[order] = request_id

    def leave(self, request_id: str) -> None:
        """Take a request out."""
        if self.oldest() == request_id:
            self.overtaken = 0
        del self._sorted[self._orders.pop(request_id)]

    def served(self, request_id: str) -> None:
        """Take out a request that was placed."""
        self.overtaken += self.oldest() != request_id
        self.leave(request_id)

    def oldest(self) -> str:
        """Return the request that came first."""
        return next(iter(self._orders))

    def order(self, request_id: str) -> Order:
        """Return what sorts a request."""
        return self._orders[request_id]

    def sort_anew(self, request_id: str, blocks: int, *, at_least: bool = False) -> None:
        """Sort a request by so many cached blocks; `at_least`: unless more were known."""
        old = self._orders[request_id]
        if blocks == -old[1] or (at_least and blocks < -old[1]):
            return
        del self._sorted[old]
        order = self._orders[request_id] = old[0], -blocks, old[2]
        self._sorted[order] = request_id

    def next_ones(self, without: Container[str]) -> list[str]:
        """Return the requests that come into question: the oldest alone, once enough went before
        it.
        """
        if self.overtaken >= MAX_OVERTAKEN:
            return [one for one in (self.oldest(),) if one not in without]
        left = (one for one in self._sorted.values() if one not in without)
        return list(islice(left, MAX_LOOKED))
