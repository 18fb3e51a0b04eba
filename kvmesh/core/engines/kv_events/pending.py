"""Batches that wait until those before them have come: so many, and so many bytes of them."""

from collections import deque
from typing import Final

MOST_BYTES: Final = 256 << 20


class PendingBatches:
    """Numbered payloads, oldest first. The oldest are dropped when more come than there is room
    for; whoever takes the others out sees the hole, as if they had never come.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._batches: deque[tuple[int, bytes]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def first(self) -> tuple[int, bytes]:
        """Return the oldest; there must be one."""
        return self._batches[0]

    @property
    def last(self) -> tuple[int, bytes]:
        """Return the newest; there must be one."""
        return self._batches[-1]

    def add(self, seq: int, payload: bytes) -> None:
        """Keep a batch, the newest."""
        self._batches.append((seq, payload))
        self._bytes += len(payload)
        while len(self._batches) > self._most or self._bytes > MOST_BYTES:
            self.take()

    def take(self) -> tuple[int, bytes]:
        """Remove and return the oldest."""
        batch = self._batches.popleft()
        self._bytes -= len(batch[1])
        return batch

    def clear(self) -> None:
        """Keep nothing."""
        self._batches.clear()
        self._bytes = 0
