"""Comparing replicas: the index's digest, now and at each of the last journal sequences."""

import struct
from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.journal.ordering import Cursor

_MASK: Final = (1 << 64) - 1
_READ: Final = struct.Struct("<QQ")


class Claim(msgspec.Struct, frozen=True):
    """The digest of an index at one sequence. `scope` tells what it covers (`IndexDigest`)."""

    sequence: int
    digest: int
    scope: int


class DigestHistory:
    """Our own claims of the last `depth` sequences, and peers' claims not reached yet."""

    def __init__(self, depth: int = 4096, claims_per_peer: int = 4) -> None:
        self._depth = depth
        self._claims_per_peer = claims_per_peer
        self._own: dict[int, Claim] = {}
        self._peers: dict[str, deque[Claim]] = {}
        self.compared = 0

    def record(self, claim: Claim) -> None:
        """Note our own digest. O(1)."""
        own = self._own
        own[claim.sequence] = claim
        if len(own) > self._depth:
            del own[next(iter(own))]

    def compare(self, peer: str, claim: Claim) -> Claim | None:
        """Take a peer's claim; return the first of its claims that contradicts ours, if any.

        Claims with another scope are not comparable; one from ahead of us waits until the next
        call for that peer.
        """
        waiting = self._peers.setdefault(peer, deque(maxlen=self._claims_per_peer))
        waiting.append(claim)
        for one in list(waiting):
            mine = self._own.get(one.sequence)
            if mine is None:
                continue
            waiting.remove(one)
            if mine.scope == one.scope:
                self.compared += 1
                if mine.digest != one.digest:
                    return one
        return None

    def forget(self, peer: str) -> None:
        """Drop what a peer claimed."""
        self._peers.pop(peer, None)

    def clear(self) -> None:
        """Drop everything: the index or the journal is another one now."""
        self._own.clear()
        self._peers.clear()


class IndexDigest:
    """A sum over the workers that are known exactly, kept up to date share by share.

    `digest` sums what they hold, `scope` who they are and how far each is read, both mod 2^64 and
    independent of order. Equal scopes make digests comparable: one worker's blocks depend only on
    its events, also after the journal was remade under replicas that had read it differently far.
    """

    def __init__(self) -> None:
        self.digest = 0
        self.scope = 0
        self._shares: dict[WorkerId, tuple[int, int]] = {}
        self._keys: dict[WorkerId, int] = {}

    def put(self, worker: WorkerId, cursor: Cursor, blocks: int) -> bool:
        """Count the worker with the digest of its `blocks`; True when it was not counted. O(1)."""
        key = self._key(worker)
        read = xxh3_64_intdigest(_READ.pack(cursor.epoch & _MASK, cursor.next_seq & _MASK), key)
        share = blocks * key
        old = self._shares.get(worker)
        self._shares[worker] = share, read
        old_share, old_read = old or (0, 0)
        self.digest = (self.digest + share - old_share) & _MASK
        self.scope = (self.scope + read - old_read) & _MASK
        return old is None

    def leave_out(self, worker: WorkerId) -> bool:
        """Count the worker no more; True when it was counted. O(1)."""
        found = self._shares.pop(worker, None)
        if found is None:
            return False
        self.digest = (self.digest - found[0]) & _MASK
        self.scope = (self.scope - found[1]) & _MASK
        return True

    def forget(self, worker: WorkerId) -> None:
        """Keep nothing of a worker that left."""
        self.leave_out(worker)
        self._keys.pop(worker, None)

    def workers(self) -> Iterable[WorkerId]:
        """Return the workers counted, as a copy."""
        return tuple(self._shares)

    def claim(self, sequence: int) -> Claim:
        """Return both sums as of a journal sequence."""
        return Claim(sequence, self.digest, self.scope)

    def _key(self, worker: WorkerId) -> int:
        """Return an odd number of the worker's own, so that blocks at two workers differ."""
        key = self._keys.get(worker)
        if key is None:
            key = self._keys[worker] = xxh3_64_intdigest(worker.encode()) | 1
        return key
