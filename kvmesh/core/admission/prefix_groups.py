"""Which of the requests that wait begin alike: found by hashes at powers of two of their blocks."""

from collections.abc import Iterator
from itertools import islice

from kvmesh.core.blocks.hashing import Hashes, as_key


class PrefixGroups:
    """Requests by the first 1, 2, 4, … blocks of their prompts.

    Of a prefix that two prompts share at least half is seen. O(log blocks) for each method.
    """

    def __init__(self) -> None:
        self._groups: dict[bytes, dict[str, None]] = {}
        self._keys: dict[str, list[bytes]] = {}

    def enter(self, request_id: str, hashes: Hashes) -> None:
        """Add a request."""
        blocks = hashes.blocks
        depths = [1 << power for power in range(blocks.bit_length())]
        chain = hashes.upto(depths[-1]) if depths else ()
        keys = self._keys[request_id] = [as_key(chain[depth - 1]) for depth in depths]
        for key in keys:
            self._groups.setdefault(key, {})[request_id] = None

    def leave(self, request_id: str) -> None:
        """Take a request out."""
        for key in self._keys.pop(request_id):
            group = self._groups[key]
            del group[request_id]
            if not group:
                del self._groups[key]

    def alike(self, request_id: str, most: int) -> tuple[int, list[str]]:
        """Return the depth, in blocks, of the longest beginning shared with any other, and up to
        `most` requests that share it, oldest first; (0, []) for none.
        """
        keys = self._keys[request_id]
        for power in reversed(range(len(keys))):
            group = self._groups[keys[power]]
            if len(group) > 1:
                others: Iterator[str] = (one for one in group if one != request_id)
                return 1 << power, list(islice(others, most))
        return 0, []
