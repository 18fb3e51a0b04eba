"""What is done about members that fail: they are asked, left out, taken back, and named."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from typing import Final

import msgspec

from kvmesh.app.members.hang_watch import Evidence, HangWatch
from kvmesh.app.members.open_streams import OpenStreams
from kvmesh.app.members.patience import Patience
from kvmesh.app.members.prober import Probe, Prober
from kvmesh.app.members.warning_lines import by_reason
from kvmesh.core.members.health import Answer
from kvmesh.core.members.health_record import Stage, Standing
from kvmesh.core.members.membership import DRAINING, STARTING, Membership
from kvmesh.core.members.poison_guard import PoisonGuard
from kvmesh.observe import get_logger
from kvmesh.tasks import keep_running
from kvmesh.transport.http.upstream.client import UpstreamPool

KNOWN_STATUSES: Final = frozenset({"429", "500", "502", "503", "504"})


class FailureCounts:
    """Counts failed attempts by (member, kind)."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, member: str, kind: str) -> None:
        """Count a failed attempt; what engines make up is no kind of its own."""
        if kind[:1].isdigit() and kind not in KNOWN_STATUSES:
            kind = f"{kind[0]}xx"
        self._counts[member, kind] += 1

    def keep(self, members: Collection[str]) -> None:
        """Drop what was counted of all others."""
        for key in [one for one in self._counts if one[0] not in members]:
            del self._counts[key]

    def as_dict(self) -> dict[tuple[str, str], int]:
        """Return the counts, sorted."""
        return dict(sorted(self._counts.items()))


LOOK_S = 0.5
SPARED = "gets requests all the same, since more than a third of the fleet fails (panic)"


class CareStatistics(msgspec.Struct, frozen=True):
    """Where members stand, and counts since the start. `failures` are attempts by (member, kind).

    Of a member's recent attempts `failure_shares` failed beyond the others' share, 0..1.
    `spared` members get requests although they failed; `waiting` requests wait for one now.
    """

    failures: dict[tuple[str, str], int]
    standings: dict[str, Standing]
    failure_shares: dict[str, float]
    ejections: int
    spared: int
    hung_attempts: int
    waiting: int
    waited: int


class FailureCare:
    """What all requests share for when a member (`what`: worker or replica) fails them.

    `find_probe` tells how to ask a member; `settle`, if given, is called each `LOOK_S`.
    """

    def __init__(
        self,
        what: str,
        membership: Membership,
        find_probe: Callable[[str], Probe | None],
        wait_s: float,
        clock: Callable[[], float],
        settle: Callable[[float], None] | None = None,
    ) -> None:
        self.failures = FailureCounts()
        self.hangs = HangWatch(clock, membership.members)
        self.streams = self.hangs.streams = OpenStreams(membership, clock)
        self.patience = Patience(wait_s, lambda: membership.usable(clock()), clock)
        self._what = what
        self._membership = membership
        self._find_probe = find_probe
        self._clock = clock
        self._settle = settle
        self._prober: Prober | None = None
        self._poison: PoisonGuard | None = None
        self._stages: dict[str, Stage] = {}

    def running(
        self, asking: UpstreamPool, serving: UpstreamPool, evidence: Evidence | None = None
    ) -> tuple[Coroutine[None, None, None], ...]:
        """Return what must run for as long as the router serves; from now on workers are asked.

        The pool that requests are sent by is told which of those that broke a connection are gone;
        workers are found to hang by the `evidence`.
        """
        self._membership.health.asks = True
        self._poison, self.hangs.evidence = serving.poison, evidence
        self._prober = prober = Prober(asking, self._due, self._report, self._clock)
        return (
            keep_running("ask suspects", prober.run),
            keep_running("patience", self.patience.run),
            keep_running("look after failures", self._check_after),
        )

    def wake(self) -> None:
        """Ask those whom a failure has just made suspect in this turn of the loop."""
        if self._prober is not None:
            self._prober.wake()

    def warnings(self) -> tuple[str, ...]:
        """Return who gets nothing, a line each reason, and whether too many fail.

        Those that were told to get nothing new are none of them.
        The words stay the same while nothing changes: several replicas' are shown once.
        """
        now, health = self._clock(), self._membership.health
        usable = frozenset(self._membership.usable(now))
        failing = [one for one in self._membership.members() if health.is_left_out(one, now)]
        why_not = self._membership.why_not
        others = set(self._membership.members()).difference(usable, failing)
        out = [(one, health.reason(one)) for one in failing if one not in usable]
        out += [
            (one, why)
            for one in others
            if (why := why_not(one, now)) and why not in (DRAINING, STARTING)
        ]
        spared = ((one, SPARED) for one in failing if one in usable)
        return (*by_reason(out, "gets no requests"), *by_reason(spared, "fails"))

    def statistics(self) -> CareStatistics:
        """Return where members stand now, and counts since the start."""
        now, health = self._clock(), self._membership.health
        self._membership.usable(now)  # counts who is spared now
        members = self._membership.members()
        return CareStatistics(
            failures=self.failures.as_dict(),
            standings={one: health.standing(one, now) for one in members},
            failure_shares={one: health.price(one, now)[0] for one in members},
            ejections=health.ejections,
            spared=health.spared,
            hung_attempts=self.hangs.given_up,
            waiting=self.patience.waiting,
            waited=self.patience.held,
        )

    def _due(self, now: float) -> list[Probe]:
        due = {*self._membership.health.due(now), *self.hangs.due(now)}
        asked = {name: self._find_probe(name) for name in due}
        if self._poison is not None and self._poison.suspects:
            # Whoever broke a connection, though it was forgiven: it may have ended of the request.
            suspects, self._poison.suspects = self._poison.suspects, set()
            probes = {name: self._find_probe(name) for name in self._membership.members()}
            asked |= {name: one for name, one in probes.items() if one and one.url in suspects}
        return [probe for _, probe in sorted(asked.items()) if probe is not None]

    def _report(self, member: str, answer: Answer, now: float) -> None:
        self._membership.answered(member, answer, now)
        self.hangs.answered(member, answer)
        if answer == "down" and self._poison is not None and self._poison.deaths:
            probe = self._find_probe(member)
            if probe is not None:
                self._poison.gone(probe.url, now)

    async def _check_after(self) -> None:
        """Let old failures cost less, and log who is left out and who is back, for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._settle is not None:
                self._settle(self._clock())
            self.streams.look(self._clock())
            self.failures.keep(self._membership.members())
            self._log_changes()

    def _log_changes(self) -> None:
        log, now, health = get_logger(), self._clock(), self._membership.health
        stages = {member: health.stage(member) for member in self._membership.members()}
        for member, stage in stages.items():
            before = self._stages.get(member, Stage.IN)
            if stage is before:
                continue
            if stage is Stage.IN:
                log.info("member is trusted again", what=self._what, member=member)
            elif stage in (Stage.EJECTED, Stage.DOWN):
                why = health.words(member, now)
                log.warning("member left out", what=self._what, member=member, why=why)
        self._stages = stages
