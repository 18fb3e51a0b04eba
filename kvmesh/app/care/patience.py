"""Requests that nobody can take now, and why that may end soon."""

import asyncio
from collections.abc import Callable
from typing import Final

from kvmesh.tasks import guarded

LOOK_S: Final = 0.05
MOST_HELD: Final = 4096


class Patience:
    """Holds requests for up to `wait_s` while nobody may be given one; 0 holds nothing.

    `someone` says whether somebody may be given a request again: then all go on, in their order.
    """

    def __init__(
        self, wait_s: float, someone: Callable[[], bool], clock: Callable[[], float]
    ) -> None:
        self.wait_s = wait_s
        self.held = 0
        self._someone = someone
        self._clock = clock
        self._waiting: dict[Callable[[], None], float] = {}
        self._begun = asyncio.Event()

    def hold(self, proceed: Callable[[], None]) -> bool:
        """Call `proceed` when somebody may be given a request, or after `wait_s`.

        Return False where the request is not held: it must be answered now.
        """
        if not self.wait_s or len(self._waiting) >= MOST_HELD:
            return False
        self.held += 1
        self._waiting[proceed] = self._clock() + self.wait_s
        self._begun.set()
        return True

    def leave(self, proceed: Callable[[], None]) -> None:
        """Forget a request that ended meanwhile; does nothing for any other."""
        self._waiting.pop(proceed, None)

    @property
    def waiting(self) -> int:
        """Return how many requests are held now."""
        return len(self._waiting)

    async def run(self) -> None:
        """Let them go on in time, for ever."""
        while True:
            await self._begun.wait()
            while self._waiting:
                await asyncio.sleep(LOOK_S)
                self._look()
            self._begun.clear()

    def _look(self) -> None:
        now, someone = self._clock(), self._someone()
        ready = [one for one, until_s in self._waiting.items() if someone or until_s <= now]
        for proceed in ready:
            if self._waiting.pop(proceed, None) is not None:
                guarded("patience", proceed)()
