"""Requests that nobody can take now, and why that may end soon."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from kvmesh.transport.http.server.scope import Scope

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
        self._waiting: dict[Scope, tuple[Callable[[], None], float]] = {}
        self._had: set[Scope] = set()
        self._begun = asyncio.Event()

    def hold(self, scope: Scope, proceed: Callable[[], None]) -> bool:
        """Call `proceed` of a request when somebody may be given one, or after `wait_s`.

        Return False where the request is not held, which it is once: it must be answered now.
        """
        if not self.wait_s or scope in self._had or len(self._waiting) >= MOST_HELD:
            return False
        if self._someone():
            return False
        self.held += 1
        self._had.add(scope)
        self._waiting[scope] = proceed, self._clock() + self.wait_s
        scope.held.append(partial(self._forget, scope))
        self._begun.set()
        return True

    @property
    def waiting(self) -> int:
        """Return how many requests are held now."""
        return len(self._waiting)

    def _forget(self, scope: Scope) -> None:
        self._had.discard(scope)
        self._waiting.pop(scope, None)

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
        ready = [one for one, (_, until_s) in self._waiting.items() if someone or until_s <= now]
        for scope in ready:
            if held := self._waiting.pop(scope, None):
                scope.enter(held[0])
