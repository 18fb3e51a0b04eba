"""Turns that are held: how many of a tenant's, how many tokens, and until when at most."""

from collections.abc import Collection
from math import inf

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.turn import Turn


class GovernorOptions(msgspec.Struct, frozen=True):
    """How programs take turns. No turn is held for longer than `max_wait_s`, inf: than follows from
    what engines can do. An agent unused for `ttl_s` is forgotten. Beyond `max_waiting` held turns,
    `max_waiting_per_tenant` of one tenant, others are not held.
    """

    turns: bool = True
    max_wait_s: float = inf
    max_agents: int = 1 << 16
    max_agents_per_tenant: int = 1 << 14
    max_waiting: int = 4096
    max_waiting_per_tenant: int = 1024
    ttl_s: float = 7200.0


class HeldTurn(msgspec.Struct):
    """`until_s`: it goes by then, whatever it evicts. Only those `among` may take it, None: every
    worker.
    """

    turn: Turn
    since_s: float
    until_s: float
    among: Collection[WorkerId] | None


class HeldTurns(dict[str, HeldTurn]):
    """Held turns by request id, in the order in which they came; `tokens` are their contexts'."""

    def __init__(self, options: GovernorOptions) -> None:
        super().__init__()
        self.tokens = 0
        self._options = options
        self._of_tenant: dict[str, int] = {}
        self._due_s: float | None = None

    def may_hold(self, turn: Turn) -> bool:
        """Return whether there is a place for a turn, and its client waits at all."""
        options = self._options
        return (
            min(options.max_wait_s, turn.patience_s) > 0.0
            and len(self) < options.max_waiting
            and self._of_tenant.get(turn.tenant, 0) < options.max_waiting_per_tenant
            and turn.request_id not in self
        )

    def hold(
        self, turn: Turn, bound_s: float, among: Collection[WorkerId] | None, now: float
    ) -> None:
        """Hold a turn for so long at most."""
        bound_s = min(bound_s, turn.patience_s, self._options.max_wait_s)
        self[turn.request_id] = HeldTurn(turn, now, now + bound_s, among)
        self.tokens += turn.prompt_tokens
        self._of_tenant[turn.tenant] = self._of_tenant.get(turn.tenant, 0) + 1
        self._due_s = None

    def let_go(self, request_id: str) -> HeldTurn | None:
        """Hold a turn no more; return it, None for another."""
        held = self.pop(request_id, None)
        if held is None:
            return None
        self.tokens -= held.turn.prompt_tokens
        self._due_s = None
        tenant = held.turn.tenant
        self._of_tenant[tenant] -= 1
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]
        return held

    def change(self, options: GovernorOptions) -> None:
        """Go by other options: what is held goes by them, but waits no longer."""
        self._options = options
        self._due_s = None

    def until_s(self, held: HeldTurn) -> float:
        """Return when a turn goes whatever it evicts."""
        if not self._options.turns:
            return -inf
        return min(held.until_s, held.since_s + self._options.max_wait_s)

    def due_s(self) -> float:
        """Return when the first of them goes whatever it evicts. There must be one."""
        if self._due_s is None:
            self._due_s = min(map(self.until_s, self.values()))
        return self._due_s

    def since(self) -> dict[str, tuple[float, float]]:
        """Return since when agents wait, and until when at most, by key: of several turns the
        first.
        """
        since: dict[str, tuple[float, float]] = {}
        for held in self.values():
            one = held.since_s, self.until_s(held)
            since[held.turn.agent] = min(since.get(held.turn.agent, one), one)
        return since

    def longest(self) -> tuple[str, HeldTurn]:
        """Return the turn that waits longest, by its request id. There must be one."""
        return min(self.items(), key=lambda one: (one[1].since_s, one[1].turn.agent))
