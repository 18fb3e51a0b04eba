"""Which arm a request belongs to: a conversation stays in one."""

from collections import OrderedDict
from typing import Final, Literal

import xxhash

from kvmesh.core.blocks.events import HASH_BYTES
from kvmesh.core.blocks.hashing import Hashes, as_key, pack_hashes
from kvmesh.core.cost.arm_tally import Counter
from kvmesh.core.cost.catalogue import Pricing

ArmName = Literal["baseline", "candidate"]

MOST_MARKS: Final = 1 << 16
"""Conversations remembered by their prompts; the one longest unused is forgotten first. 12 MB."""

LOOKBACK_BLOCKS: Final = 1024
"""A turn that adds more to its conversation is taken for a new one. About 80 ns a block, twice."""

_POINTS: Final = 1 << 53
"""Places there are: as many as a float tells apart below 1."""


class Arm:
    """One of two policies, and what became of its requests in the present stage."""

    __slots__ = ("counter", "header", "name", "policy")

    def __init__(self, name: ArmName, policy: Pricing) -> None:
        self.name: ArmName = name
        self.header = name.encode()
        self.policy = policy
        self.counter = Counter()


class Marks:
    """Where conversations stand between 0 and 1, by the last whole block of their last prompt.

    Their next prompt holds that block, and takes the mark with it: so a prefix that many share
    gives its place to one of them. Of this replica alone; a session has its place at all of them.
    """

    def __init__(self, most: int = MOST_MARKS) -> None:
        self._most = most
        self._marks: OrderedDict[bytes, tuple[float, str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._marks)

    def find(self, request_id: str, hashes: Hashes) -> tuple[int, float] | None:
        """Return the deepest mark in a prompt (its block, its place); None when there is none."""
        marks, last = self._marks, hashes.blocks - 1
        if not marks:
            return None
        known = hashes.upto(hashes.blocks)
        first = max(0, last + 1 - LOOKBACK_BLOCKS)
        keys = pack_hashes(known[first : last + 1])
        for at in range(last, first - 1, -1):
            end = (at + 1 - first) * HASH_BYTES
            mark = marks.get(keys[end - HASH_BYTES : end])
            # The same end of another request: a sibling, not its next turn.
            if mark is not None and (at < last or mark[1] == request_id):
                return known[at], mark[0]
        return None

    def move(
        self, request_id: str, hashes: Hashes, place: float, before: int | None = None
    ) -> None:
        """Have a conversation found by its newest prompt, and no longer by block `before`."""
        if not hashes.blocks:
            return
        if before is not None:
            self._marks.pop(as_key(before), None)
        last = as_key(hashes.upto(hashes.blocks)[hashes.blocks - 1])
        self._marks[last] = (place, request_id)
        self._marks.move_to_end(last)
        if len(self._marks) > self._most:
            self._marks.popitem(last=False)


class Arms:
    """The two arms of a change in one of its stages; `share` of the requests are the candidate's.

    `salt` is the change's own, so that the same sessions are not always the first. A place is
    kept from stage to stage: a conversation may come to the candidate, and stays there.
    """

    def __init__(
        self, baseline: Pricing, candidate: Pricing, share: float, salt: str, marks: Marks
    ) -> None:
        self.baseline = Arm("baseline", baseline)
        self.candidate = Arm("candidate", candidate)
        self._share = share
        self._salt = salt
        self._marks = marks

    def find(self, request_id: str, session: str, hashes: Hashes) -> Arm:
        """Return the arm of a request; the same one each time it is asked for."""
        place = self._place(request_id, session, hashes)
        return self.candidate if place < self._share else self.baseline

    def learn(self, request_id: str, session: str, hashes: Hashes) -> None:
        """Remember the conversation of a request that is sent."""
        if session:
            return
        before, place = self._marks.find(request_id, hashes) or (None, self._draw(request_id, ""))
        self._marks.move(request_id, hashes, place, before)

    def _place(self, request_id: str, session: str, hashes: Hashes) -> float:
        if not session and (found := self._marks.find(request_id, hashes)) is not None:
            return found[1]
        return self._draw(request_id, session)

    def _draw(self, request_id: str, session: str) -> float:
        key = f"{self._salt}\0{session}" if session else f"{self._salt}\1{request_id}"
        digest = xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass"))
        return digest % _POINTS / _POINTS
