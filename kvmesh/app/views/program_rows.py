"""Programs as people see them: who takes turns, who waits, where the cache is, and how full it is.

All of it is JSON. Programs are named by what is left of their key: it does not tell their name.
"""

from collections.abc import Generator, Iterable
from heapq import nsmallest
from typing import Final

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.governor import Governor
from kvmesh.core.programs.table import Agent, Phase
from kvmesh.core.programs.turn import Client, Stop

MAX_PROGRAMS: Final = 50
"""Programs that an overview shows; the others are counted."""

KEY_DIGITS: Final = 12
"""Of 32: enough to tell apart all that a router keeps."""

SLICE: Final = 1000
"""Agents looked at in one turn of the event loop: some 1 ms."""

STATES: Final[tuple[Phase, ...]] = ("waiting", "running", "paused", "ended")
"""A program is in the first of these that any of its agents is in."""


class ProgramRow(msgspec.Struct, frozen=True):
    """One program: a root agent and its sub-agents. Times are seconds; `since_s`: in this state.

    `tokens` is its context, over all agents, `reserved_tokens` what of it has room kept at
    `workers`. `back_s` is when its next turn is expected, `back_late_s` by when nine of ten come,
    None where it does not pause. `turns_left` are expected of its agents. `served_tokens` were
    computed for it. `why`: why it waits.
    """

    program: str
    bucket: str
    state: Phase
    client: Client = ""
    tenant: str = ""
    priority: int = 0
    agents: int = 1
    turns: int = 0
    turns_left: float = 0.0
    workers: tuple[str, ...] = ()
    tokens: int = 0
    reserved_tokens: int = 0
    served_tokens: int = 0
    age_s: float = 0.0
    since_s: float = 0.0
    stop: Stop = ""
    tool: str = ""
    back_s: float | None = None
    back_late_s: float | None = None
    why: str = ""


class WorkerPressure(msgspec.Struct, frozen=True):
    """One worker's cache, in tokens: how much there is, reserved, and needed by live programs."""

    capacity_tokens: int = 0
    reserved_tokens: int = 0
    working_set_tokens: int = 0


class Programs(msgspec.Struct, frozen=True):
    """All programs at one moment, counted, and those that are shown. `unplaced_tokens` are contexts
    that wait and are at no worker.
    """

    rows: list[ProgramRow] = []
    states: dict[Phase, int] = {}
    agents: int = 0
    unplaced_tokens: int = 0
    workers: dict[WorkerId, WorkerPressure] = {}


def check(
    governor: Governor, workers: Iterable[WorkerId], bucket: str, now: float
) -> Generator[None, None, Programs]:
    """Return what there is. O(agents): yields every `SLICE` agents, so that others get their turn;
    what changes meanwhile is seen or not.
    """
    programs: dict[str, list[Agent]] = {}
    needed: dict[WorkerId, int] = {}
    unplaced = 0
    for number, agent in enumerate([*governor.table.agents.values()], 1):
        programs.setdefault(agent.program, []).append(agent)
        seat = governor.seat_of(agent.key, now)
        reserved = 0 if seat is None else seat.tokens
        live = reserved or (agent.tokens if agent.phase in ("running", "waiting") else 0)
        if agent.worker is not None:
            needed[agent.worker] = needed.get(agent.worker, 0) + live
        else:
            unplaced += live
        if number % SLICE == 0:
            yield
    states: dict[Phase, int] = dict.fromkeys(STATES, 0)
    groups: list[tuple[int, float, str]] = []
    for number, (key, agents) in enumerate(programs.items(), 1):
        state = state_of(agents)
        states[state] += 1
        groups.append((STATES.index(state), min(one.began_s for one in agents), key))
        if number % SLICE == 0:
            yield
    shown = nsmallest(MAX_PROGRAMS, groups)
    return Programs(
        rows=[_row(governor, programs[key], bucket, now) for _, _, key in shown],
        states=states,
        agents=len(governor.table.agents),
        unplaced_tokens=unplaced,
        workers={
            worker: WorkerPressure(
                governor.capacity_tokens(worker),
                governor.reserved_tokens(worker, now),
                needed.get(worker, 0),
            )
            for worker in workers
        },
    )


def state_of(agents: Iterable[Agent]) -> Phase:
    """Return the state of a program with these agents, at least one."""
    phases = {agent.phase for agent in agents}
    return next(state for state in STATES if state in phases)


def merge_programs(rows: Iterable[ProgramRow]) -> list[ProgramRow]:
    """Return each program of each bucket once: the replicas share them, and who has seen the most
    turns knows the newest.
    """
    newest: dict[tuple[str, str], ProgramRow] = {}
    for row in rows:
        other = newest.get((row.bucket, row.program))
        if other is None or (row.turns, -row.since_s) > (other.turns, -other.since_s):
            newest[row.bucket, row.program] = row
    ordered = sorted(newest.values(), key=lambda row: (STATES.index(row.state), -row.age_s))
    return ordered[:MAX_PROGRAMS]


def _row(governor: Governor, agents: list[Agent], bucket: str, now: float) -> ProgramRow:
    state = state_of(agents)
    # Of several in this state the one whose turn ended last tells when the program goes on.
    foremost = max((one for one in agents if one.phase == state), key=lambda one: one.since_s)
    root = min(agents, key=lambda one: (one.key != one.program, one.began_s))
    pause = governor.expect(foremost, now) if state == "paused" else None
    seats = [governor.seat_of(one.key, now) for one in agents]
    return ProgramRow(
        program=root.program[:KEY_DIGITS],
        bucket=bucket,
        state=state,
        client=root.client,
        tenant=root.tenant,
        priority=max(one.priority for one in agents),
        agents=len(agents),
        turns=sum(one.turns for one in agents),
        turns_left=round(sum(map(governor.turns_left, agents)), 1),
        workers=tuple(sorted({one.worker for one in agents if one.worker is not None})),
        tokens=sum(one.tokens for one in agents if one.phase != "ended"),
        reserved_tokens=sum(seat.tokens for seat in seats if seat is not None),
        served_tokens=sum(one.served_tokens for one in agents),
        age_s=round(max(0.0, now - min(one.began_s for one in agents)), 1),
        since_s=round(max(0.0, now - foremost.since_s), 1),
        stop=foremost.stop,
        tool=foremost.tool,
        back_s=None if pause is None else round(pause.p50_s, 1),
        back_late_s=None if pause is None else round(pause.p90_s, 1),
        why=_why(foremost) if state == "waiting" else "",
    )


def _why(agent: Agent) -> str:
    return (
        f"{agent.tokens:,} tokens fit no cache beside older programs: goes when one ends or "
        "pauses for long, or when it has waited longest"
    )
