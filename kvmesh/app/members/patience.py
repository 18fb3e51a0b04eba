"""Requests that nobody can take now, and why that may end soon."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Final

import msgspec

from kvmesh.transport.http.server.scope import Scope

LOOK_S: Final = 0.05
AGAIN_S: Final = 1.0
"""A held request is tried again so often though the same members may be given one: what they serve
or how they are may have changed.
"""

MOST_HELD: Final = 4096
HELD_SHARE: Final = 0.5


class _Held(msgspec.Struct, frozen=True):
    proceed: Callable[[], None]
    usable: Sequence[str]
    again_s: float


class Patience:
    """Holds requests that nobody can take, each for up to `wait_s` in all; 0 holds nothing.

    `usable` returns who may be given a request, the same object for as long as that is so: when it
    changes all go on, in their order. One that still finds nobody is held again.
    """

    def __init__(
        self, wait_s: float, usable: Callable[[], Sequence[str]], clock: Callable[[], float]
    ) -> None:
        self.wait_s = wait_s
        self.held = 0
        self._usable = usable
        self._clock = clock
        self._waiting: dict[Scope, _Held] = {}
        self._until_s: dict[Scope, float] = {}
        self._begun = asyncio.Event()

    def hold(self, scope: Scope, proceed: Callable[[], None], client_s: float = inf) -> bool:
        """Call `proceed` of a request when it may find somebody, or its `wait_s` are over, or half
        of the `client_s` that its client goes on to wait: the rest is left for its answer.

        Return False where the request is not held: it must be answered now.
        """
        if not self.wait_s or len(self._waiting) >= MOST_HELD:
            return False
        now = self._clock()
        until_s = self._until_s.get(scope)
        if until_s is None:
            wait_s = min(self.wait_s, max(0.0, client_s * HELD_SHARE))
            until_s = self._until_s[scope] = now + wait_s
            scope.held.append(partial(self._forget, scope))
            self.held += 1
        if now >= until_s:
            return False
        self._waiting[scope] = _Held(proceed, self._usable(), min(now + AGAIN_S, until_s))
        self._begun.set()
        return True

    @property
    def waiting(self) -> int:
        """Return how many requests are held now."""
        return len(self._waiting)

    def _forget(self, scope: Scope) -> None:
        self._until_s.pop(scope, None)
        self._waiting.pop(scope, None)

    async def run(self) -> None:
        """Let them go on in time, for ever."""
        while True:
            await self._begun.wait()
            while self._waiting:
                await asyncio.sleep(LOOK_S)
                self._check()
            self._begun.clear()

    def _check(self) -> None:
        now, usable = self._clock(), self._usable()
        ready = [
            scope
            for scope, one in self._waiting.items()
            if one.usable is not usable or one.again_s <= now
        ]
        for scope in ready:
            if held := self._waiting.pop(scope, None):
                scope.enter(held.proceed)
