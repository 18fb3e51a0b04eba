"""How often somebody may try a key that is none."""

from heapq import nlargest
from ipaddress import IPv6Address, ip_address
from typing import Final

BURST: Final = 10.0
"""Failures in a row that a client is forgiven."""

REFILL_S: Final = 6.0
"""Each takes this long to be forgotten."""

MOST_CLIENTS: Final = 1024
"""Clients remembered; beyond it those that failed least lately are forgotten."""

_NETWORK_BITS: Final = 64
_LONGEST: Final = 64
"""Characters of an address."""


class FailedLogins:
    """A bucket of failures for each client. Times are the caller's, seconds. A login that succeeds
    costs nothing.
    """

    def __init__(self) -> None:
        self._failures: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def wait_s(self, client: str, now: float) -> float:
        """Return how long the client must wait before it may try, 0 for not at all."""
        return max(0.0, (self._left(client, now) - BURST + 1.0) * REFILL_S)

    def failed(self, client: str, now: float) -> None:
        """Count a failure."""
        self._failures[client] = min(BURST, self._left(client, now) + 1.0), now
        if len(self._failures) > MOST_CLIENTS:
            left = {one: self._left(one, now) for one in self._failures}
            kept = nlargest(MOST_CLIENTS // 2, left, key=left.__getitem__)
            self._failures = {one: (left[one], now) for one in kept if left[one] > 0.0}

    def _left(self, client: str, now: float) -> float:
        """Return how many failures still count."""
        failures, since_s = self._failures.get(client, (0.0, now))
        return max(0.0, failures - (now - since_s) / REFILL_S)


def client_at(peer: str, reported: str = "") -> str:
    """Return who a client is: by the peer's address, and the one that a proxy there told last.

    Of IPv6 the /64, which a client has whole. A client without a proxy may tell what it likes, and
    is never taken for another by that.
    """
    return f"{_network(peer)} {_network(reported)}" if reported else _network(peer)


def _network(address: str) -> str:
    address = address[:_LONGEST]
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return f"{int(found) >> (128 - _NETWORK_BITS):x}"
