"""The agents a router knows: bounded, by tenant, and told to its siblings."""

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from math import inf
from typing import Final, Literal

import msgspec

from kvmesh.bounds import MAX_NAME, MAX_TOKENS, shown
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.turn import Client, Stop, Turn

Phase = Literal["waiting", "running", "paused", "ended"]
"""waiting: a turn is held; running: an engine works on one; paused: its client has the answer;
ended: no other turn will follow."""

MAX_SERVED: Final = 1 << 50
"""Attained service counts up to here, tokens."""

MAX_AGE_S: Final = 1e9
"""No agent is older, s."""

_KEY_DIGITS: Final = 32


class AgentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What replicas publish of an agent. Times are ages in seconds at the time of publishing.

    `revision` grows with each change: of two records the one with the larger counts, of equal ones
    the larger in the rest, so all replicas end with the same. `late_s`: how long ago it was let go
    because its wait had reached the bound, -1 never. `keep_s`: how long after `since_s` its
    context stays reserved while it pauses, -1 for the hearer to judge.
    """

    revision: int
    agent: str
    program: str
    tenant: str = ""
    client: Client = ""
    priority: int = 0
    phase: Phase = "paused"
    worker: str = ""
    tokens: int = 0
    turns: int = 0
    served_tokens: int = 0
    stop: Stop = ""
    tool: str = ""
    age_s: float = 0.0
    since_s: float = 0.0
    seated: bool = False
    late_s: float = -1.0
    keep_s: float = -1.0


class Agent(msgspec.Struct, eq=False):
    """One agent. `tokens` is its footprint: the context its next turn needs, at `worker`.

    `began_s` is when its program was first seen, `since_s` when its phase changed. `served_tokens`
    is its attained service: prompt tokens computed and output. `seated`: it may take turns.
    `late_s` is when its wait last reached the bound. `keep_s` is for how long its
    pause keeps its context, -1.0 not known yet. `paced`: its pause was learned. `failed`: its
    last turn was, and may be taken again. `answer_tokens` is the length of its last answer here,
    `prompt_tokens` that of the prompt before it, which `prompt_worker` served:
    `written_tokens` is what turns had written there by then.
    """

    key: str
    program: str
    tenant: str
    began_s: float
    since_s: float
    client: Client = ""
    priority: int = 0
    phase: Phase = "paused"
    worker: WorkerId | None = None
    tokens: int = 0
    turns: int = 0
    served_tokens: int = 0
    stop: Stop = ""
    tool: str = ""
    running: int = 0
    revision: int = 0
    seated: bool = False
    late_s: float = -inf
    keep_s: float = -1.0
    answer_tokens: int = 0
    prompt_tokens: int = 0
    prompt_worker: WorkerId | None = None
    written_tokens: int = 0
    paced: bool = True
    failed: bool = False

    def enter(self, phase: Phase, now: float) -> None:
        """Change the phase."""
        self.phase, self.since_s = phase, now

    def record(self, now: float) -> AgentRecord:
        """Return what is published to siblings."""
        return AgentRecord(
            revision=self.revision,
            agent=self.key,
            program=self.program,
            tenant=self.tenant,
            client=self.client,
            priority=self.priority,
            phase=self.phase,
            worker=self.worker or "",
            tokens=self.tokens,
            turns=self.turns,
            served_tokens=self.served_tokens,
            stop=self.stop,
            tool=self.tool,
            age_s=max(0.0, now - self.began_s),
            since_s=max(0.0, now - self.since_s),
            seated=self.seated,
            keep_s=self.keep_s,
            late_s=-1.0 if self.late_s == -inf else max(0.0, now - self.late_s),
        )


class ProgramTable:
    """Agents by key, the longest unused first. At most `max_agents`, of one tenant at most
    `max_per_tenant`: a newcomer takes the place of the longest unused that takes no turn, of its
    own tenant where that has too many. Without such a one the newcomer is not noted.
    """

    def __init__(self, max_agents: int, max_per_tenant: int) -> None:
        self._max_agents = max_agents
        self._max_per_tenant = max_per_tenant
        self.agents: OrderedDict[str, Agent] = OrderedDict()
        self._tenants: dict[str, OrderedDict[str, None]] = {}
        self._programs: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self.agents)

    def find(self, key: str) -> Agent | None:
        """Return an agent; None for an unknown one."""
        return self.agents.get(key)

    def note(self, turn: Turn, now: float) -> tuple[Agent | None, Agent | None]:
        """Return the agent whose turn it is, entered if new, and the agent that gave its place."""
        agent = self.agents.get(turn.agent)
        gone: Agent | None = None
        if agent is None:
            agent, gone = self.enter(turn.agent, turn.program, turn.tenant, now)
            if agent is None:
                return None, gone
        else:
            self.agents.move_to_end(turn.agent)
            self._tenants[agent.tenant].move_to_end(turn.agent)
        agent.client = turn.client
        agent.priority = turn.priority
        return agent, gone

    def enter(
        self, key: str, program: str, tenant: str, now: float
    ) -> tuple[Agent | None, Agent | None]:
        """Add an agent; return it, None when there is no place, and the one that gave it."""
        own = self._tenants.get(tenant)
        gone: Agent | None = None
        if own is not None and len(own) >= self._max_per_tenant:
            gone = self._idlest(own)
        elif len(self.agents) >= self._max_agents:
            gone = self._idlest(self.agents)
        else:
            return self._add(key, program, tenant, now), None
        if gone is None:
            return None, None
        self.remove(gone.key)
        return self._add(key, program, tenant, now), gone

    def forget_before(self, used_s: float, forget: Callable[[Agent], None]) -> bool:
        """Forget the longest unused, one or two a call, if it took no turn since; return whether
        there was one.
        """
        idle = [
            agent
            for agent in islice(self.agents.values(), 2)
            if agent.since_s < used_s and not agent.running
        ]
        for agent in idle:
            self.remove(agent.key)
            forget(agent)
        return bool(idle)

    def remove(self, key: str) -> Agent | None:
        """Forget an agent; return it."""
        agent = self.agents.pop(key, None)
        if agent is None:
            return None
        own = self._tenants[agent.tenant]
        del own[key]
        if not own:
            del self._tenants[agent.tenant]
        siblings = self._programs[agent.program]
        siblings.discard(key)
        if not siblings:
            del self._programs[agent.program]
        return agent

    def _add(self, key: str, program: str, tenant: str, now: float) -> Agent:
        parent = self.agents.get(program)
        if parent is not None:  # itself a sub-agent, perhaps: the root is the program of all
            program = parent.program
        agent = self.agents[key] = Agent(key, program, tenant, now, now)
        self._tenants.setdefault(tenant, OrderedDict())[key] = None
        siblings = self._programs.setdefault(program, set())
        for sibling in siblings:
            agent.began_s = min(agent.began_s, self.agents[sibling].began_s)
        siblings.add(key)
        return agent

    def _idlest(self, keys: OrderedDict[str, Agent] | OrderedDict[str, None]) -> Agent | None:
        """Return the longest unused that takes no turn, of the first few."""
        for key, _ in zip(keys, range(_LOOKED_AT), strict=False):
            agent = self.agents[key]
            if agent.phase in ("paused", "ended"):
                return agent
        return None


_LOOKED_AT: Final = 64
"""Agents that take a turn, passed over at most to find one that gives its place."""


def check_record(key: str, record: AgentRecord) -> str:
    """Return what is wrong with a sibling's record, "" for nothing."""
    numbers = (record.tokens, record.turns, record.served_tokens, record.revision)
    if key != record.agent or not len(key) == len(record.program) == _KEY_DIGITS:
        return f"agent {shown(key)}: not the key of this record"
    if not all(0 <= number <= MAX_SERVED for number in numbers) or record.tokens > MAX_TOKENS:
        return f"agent {shown(key)}: a number is out of its range"
    if max(map(len, (record.worker, record.tool, record.tenant))) > MAX_NAME:
        return f"agent {shown(key)}: a name is too long"
    ages = (record.age_s, record.since_s, record.late_s + 1.0, record.keep_s + 1.0)
    if not all(0.0 <= age_s < MAX_AGE_S for age_s in ages):
        return f"agent {shown(key)}: no such age"
    return ""


def order_of(one: AgentRecord | Agent) -> tuple[int, str, str, int, int, int, str, str, str, int]:
    """Return what decides which of two records counts: of all that is told, but for moments."""
    return (
        *(one.revision, one.phase, one.worker or "", one.tokens, one.turns),
        *(one.served_tokens, one.stop, one.tool, one.client, one.priority),
    )
