"""Service of tenants as replicas tell each other, counters that only grow, and as people see it."""

from hashlib import blake2b
from typing import Annotated, Final

import msgspec

from kvmesh.bounds import Sequence

MAX_ROWS: Final = 64
"""Accounts told in one message, about 40 bytes each; the others follow in the next ones."""

REST: Final = 0
"""Key of the account that tenants share for whom there is no room."""

_KEY_SHIFT: Final = 2


def key_of(tenant: str) -> int:
    """Return the key of a tenant's account, 1..2^62: alike at all replicas, and nobody can choose
    a name that meets another's.
    """
    digest = blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=8, person=b"kvmesh-share")
    return (int.from_bytes(digest.digest(), "little") >> _KEY_SHIFT) + 1


class ShareRow(msgspec.Struct, frozen=True, array_like=True):
    """One tenant at one replica: tokens `charged` and `returned` since the account was opened.

    `born` numbers the accounts of a replica: a larger one was opened later, and began with 0.
    `waiting` of its requests are held there.
    """

    key: Sequence
    born: Sequence
    charged: Sequence
    returned: Sequence
    waiting: Sequence


class Shares(msgspec.Struct, frozen=True, array_like=True):
    """Accounts of the sender that changed, or in a `beat` that wait; up to `serial` were opened
    before. `left` is what the tenant that is furthest behind may yet be given in this round.
    """

    serial: Sequence
    left: Sequence
    rows: Annotated[list[ShareRow], msgspec.Meta(max_length=MAX_ROWS)]
    beat: bool = False


class TenantShare(msgspec.Struct, frozen=True, rename={"waits_remotely": "waits_elsewhere"}):
    """One tenant for people. `service` are tokens charged at this replica, `deficit` how many more
    it may be given before the others have had theirs; below 0 it is ahead.
    """

    tenant: str
    service: int
    deficit: int
    waiting: int
    waits_remotely: bool


class LedgerStatistics(msgspec.Struct, frozen=True):
    """Tenants known and those that wait anywhere; how many tokens the last of these are behind the
    first; tokens charged here and heard of siblings since the start, and how often tenants that
    wait at siblings were `passed` over.
    """

    tenants: int
    waiting: int
    apart: int
    charged: int
    received: int
    passed: int
