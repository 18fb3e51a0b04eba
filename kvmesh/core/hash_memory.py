"""The hashes of prompts' pieces seen lately: a long prompt that comes again, or goes on, is not
hashed block by block anew.
"""

from typing import Final

PIECE_BLOCKS: Final = 128
"""Blocks of a piece: to know one again costs 2 us, to hash one 8 us."""

MAX_PIECES: Final = 4096
"""Pieces that a generation holds, about 5 MB; there are two."""


class HashMemory:
    """Remembers the sequence hashes of whole pieces of prompts, all of one block size.

    A piece is known by 128 bits of its content and of its seed, which stands for all before it.
    Two generations: what is asked for stays, what is not asked for while `max_pieces` others are
    is forgotten. Threads may share one: at worst a piece is hashed twice.
    """

    def __init__(self, *, max_pieces: int = MAX_PIECES) -> None:
        self._max_pieces = max_pieces
        self._young: dict[int, bytes] = {}
        self._old: dict[int, bytes] = {}

    def __len__(self) -> int:
        """Return how many pieces are kept, those of both generations twice."""
        return len(self._young) + len(self._old)

    def find(self, key: int) -> bytes | None:
        """Return a piece's hashes, packed; None where they are not known."""
        known = self._young.get(key)
        if known is None:
            known = self._old.get(key)
            if known is not None:
                self.keep(key, known)
        return known

    def keep(self, key: int, hashes: bytes) -> None:
        """Remember a piece's packed hashes."""
        if len(self._young) >= self._max_pieces:
            self._old, self._young = self._young, {}
        self._young[key] = hashes
