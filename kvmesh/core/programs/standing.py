"""How an agent stands with the governor, for people and programs."""

from collections.abc import Mapping
from math import inf

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.governor import Governor
from kvmesh.core.programs.table import Agent, Phase
from kvmesh.core.programs.turn import Client, Stop, Turn


class Standing(msgspec.Struct, frozen=True):
    """One agent: its context of `tokens` is at `worker` ("": nowhere), `reserved` there or not, for
    another `kept_s` seconds if it sends nothing (None: as long as its turn takes, or not at all).

    It is in its `phase` for `since_s` seconds, its program known for `age_s`; `held_s` is how long
    its turn has waited here, None where none does. `served_tokens` is its attained service: prompt
    tokens computed, and output. `why`: the same in words. Of one that pauses, `back_s` is when its
    next turn is expected, `back_late_s` by when nine of ten come. `turns_left` are expected.
    """

    agent: str
    program: str
    tenant: str
    client: Client
    phase: Phase
    worker: str
    tokens: int
    reserved: bool
    kept_s: float | None
    turns: int
    served_tokens: int
    age_s: float
    since_s: float
    stop: Stop
    tool: str
    held_s: float | None
    why: str
    back_s: float | None = None
    back_late_s: float | None = None
    turns_left: float = 0.0


class Pressure(msgspec.Struct, frozen=True):
    """A worker's cache: what it holds in tokens, 0 unknown, and what is reserved of that."""

    worker: WorkerId
    capacity_tokens: int
    reserved_tokens: int


def standing(
    governor: Governor,
    agent: Agent,
    now: float,
    held: Mapping[str, tuple[float, float]] | None = None,
) -> Standing:
    """Return how an agent stands. `held` is what `HeldTurns.since` says, if that was asked."""
    seat = governor.seat_of(agent.key, now)
    kept_s = None if seat is None or seat.until_s == inf else max(0.0, seat.until_s - now)
    since_s, until_s = (governor.waiting.since() if held is None else held).get(
        agent.key, (inf, inf)
    )
    held_s = None if since_s == inf else max(0.0, now - since_s)
    pause = governor.expect(agent, now)
    return Standing(
        agent=agent.key,
        program=agent.program,
        tenant=agent.tenant,
        client=agent.client,
        phase=agent.phase,
        worker=agent.worker or "",
        tokens=agent.tokens,
        reserved=seat is not None,
        kept_s=kept_s,
        turns=agent.turns,
        served_tokens=agent.served_tokens,
        age_s=max(0.0, now - agent.began_s),
        since_s=max(0.0, now - agent.since_s),
        stop=agent.stop,
        tool=agent.tool,
        held_s=held_s,
        why=_why(agent, kept_s, held_s, until_s - now, reserved=seat is not None),
        back_s=None if pause is None else round(pause.p50_s, 1),
        back_late_s=None if pause is None else round(pause.p90_s, 1),
        turns_left=round(governor.turns_left(agent), 1),
    )


class Outlook(msgspec.Struct, frozen=True):
    """What a request of an agent would meet now: it `waits`, or goes to one of `workers` (empty:
    to any). `standing` is None of an agent that is not known yet. `why`: the same in words.
    """

    agent: str
    program: str
    client: Client
    waits: bool
    workers: tuple[WorkerId, ...]
    why: str
    standing: Standing | None = None


def outlook(governor: Governor, turn: Turn, now: float) -> Outlook:
    """Return what a turn would meet; nothing is noted."""
    grant = governor.check(turn, now)
    agent = governor.table.find(turn.agent)
    workers = tuple(sorted(grant.workers or ())) if grant is not None else ()
    if not governor.options.turns:
        why = "programs take no turns here: --program-turns is not on"
    elif grant is None:
        why = "it would wait: older programs' contexts fill the caches"
    elif workers:
        why = f"its context fits beside those of older programs at {', '.join(workers)}"
    else:
        why = "no program has to wait: all contexts fit, or computing them again costs less"
    return Outlook(
        agent=turn.agent,
        program=turn.program,
        client=turn.client,
        waits=grant is None,
        workers=workers,
        why=why,
        standing=None if agent is None else standing(governor, agent, now),
    )


def standings(
    governor: Governor, now: float, most: int, tenant: str | None = None
) -> list[Standing]:
    """Return how agents stand, of one `tenant` or all: those that wait first, longest first, then
    those that take a turn, then the others, lately used first; `most` of them.
    """
    phases = {"waiting": 0, "running": 1, "paused": 2, "ended": 3}
    agents = [
        one for one in governor.table.agents.values() if tenant is None or one.tenant == tenant
    ]
    agents.sort(
        key=lambda one: (
            phases[one.phase],
            one.since_s if one.phase == "waiting" else -one.since_s,
            one.key,
        )
    )
    held = governor.waiting.since()
    return [standing(governor, one, now, held) for one in agents[:most]]


def pressures(governor: Governor, now: float) -> list[Pressure]:
    """Return every worker's cache, by name."""
    return [
        Pressure(worker, governor.capacity_tokens(worker), governor.reserved_tokens(worker, now))
        for worker in sorted(governor.workers(now))
    ]


def _why(
    agent: Agent, kept_s: float | None, held_s: float | None, left_s: float, *, reserved: bool
) -> str:
    place = f"at {agent.worker}" if agent.worker else "at no worker"
    if held_s is not None:
        return (
            f"waits for {held_s:.1f} s, for {left_s:.0f} s more at most: no cache has room for its"
            f" {agent.tokens:,} tokens beside the programs before it"
        )
    if agent.phase == "waiting":
        return "waits at another replica"
    if agent.phase == "running":
        return f"takes a turn {place}"
    if agent.phase == "ended":
        return "has ended: nothing is kept for it"
    if reserved:
        kept = "" if kept_s is None else f" for {kept_s:.0f} s"
        return f"its client has the turn; its {agent.tokens:,} tokens are kept {place}{kept}"
    return f"its client has the turn; nothing is kept for it, its cache may still be {place}"
