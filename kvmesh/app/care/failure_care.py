"""What is done about members that fail: they are asked, left out, taken back, and named."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kvmesh.app.care.failure_counts import FailureCounts
from kvmesh.app.care.hang_watch import HangWatch
from kvmesh.app.care.patience import Patience
from kvmesh.app.care.prober import Probe, Prober
from kvmesh.app.care.warning_lines import by_reason
from kvmesh.core.health.health import Answer
from kvmesh.core.health.record import STANDINGS, Stage
from kvmesh.core.members.membership import Membership
from kvmesh.observe import get_logger
from kvmesh.tasks import keep_running
from kvmesh.transport.http.upstream.client import UpstreamPool

LOOK_S = 0.5
SPARED = "gets requests all the same, since more than a third of the fleet fails (panic)"


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
        self.hangs = HangWatch(clock)
        self.patience = Patience(wait_s, lambda: bool(membership.usable(clock())), clock)
        self._what = what
        self._membership = membership
        self._find_probe = find_probe
        self._clock = clock
        self._settle = settle
        self._prober: Prober | None = None
        self._stages: dict[str, Stage] = {}

    def running(self, pool: UpstreamPool) -> tuple[Coroutine[None, None, None], ...]:
        """Return what must run for as long as the router serves; from now on workers are asked."""
        self._membership.health.asks = True
        self._prober = prober = Prober(pool, self._due, self._tell, self._clock)
        return (
            keep_running("ask suspects", prober.run),
            keep_running("patience", self.patience.run),
            keep_running("look after failures", self._look_after),
        )

    def wake(self) -> None:
        """Ask those whom a failure has just made suspect in this turn of the loop."""
        if self._prober is not None:
            self._prober.wake()

    def warnings(self) -> tuple[str, ...]:
        """Return who is left out for failing, a line each reason, and whether too many are.

        The words stay the same while nothing changes: several replicas' are shown once.
        """
        now, health = self._clock(), self._membership.health
        usable = frozenset(self._membership.usable(now))
        failing = [one for one in self._membership.members() if health.is_left_out(one, now)]
        out = ((one, health.reason(one)) for one in failing if one not in usable)
        spared = ((one, SPARED) for one in failing if one in usable)
        return (*by_reason(out, "gets no requests"), *by_reason(spared, "fails"))

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as Prometheus reads them; names and labels begin with what fails."""
        what, health, now = self._what, self._membership.health, self._clock()
        self._membership.usable(now)
        stages = GaugeMetricFamily(
            f"kvmesh_{what}_stage",
            f"1 for where its requests put a {what}, 0 for the rest.",
            labels=[what, "stage"],
        )
        share = GaugeMetricFamily(
            f"kvmesh_{what}_failure_share",
            f"Share of a {what}'s recent attempts that failed beyond the others' share.",
            labels=[what],
        )
        for member in self._membership.members():
            share.add_metric([member], health.price(member, now)[0])
            standing = health.standing(member, now)
            for stage in STANDINGS:
                stages.add_metric([member, stage], float(stage == standing))
        yield from (self.failures.metric(what), stages, share)
        yield CounterMetricFamily(
            f"kvmesh_{what}_ejections", f"Times that a {what} was ejected.", health.ejections
        )
        yield GaugeMetricFamily(
            f"kvmesh_{what}s_spared",
            f"Failing {what}s that get requests all the same, since more than a third fail.",
            health.spared,
        )
        yield CounterMetricFamily(
            f"kvmesh_{what}_hung_attempts",
            f"Attempts given up because their {what} showed no sign of life.",
            self.hangs.given_up,
        )
        yield GaugeMetricFamily(
            f"kvmesh_waiting_for_{what}",
            f"Requests that wait while no {what} may be given one.",
            self.patience.waiting,
        )
        yield CounterMetricFamily(
            f"kvmesh_waited_for_{what}",
            f"Requests that waited while no {what} might be given one.",
            self.patience.held,
        )

    def _due(self, now: float) -> list[Probe]:
        asked = sorted({*self._membership.health.due(now), *self.hangs.due(now)})
        return [probe for name in asked if (probe := self._find_probe(name)) is not None]

    def _tell(self, member: str, answer: Answer, now: float) -> None:
        self._membership.answered(member, answer, now)
        self.hangs.answered(member, answer)

    async def _look_after(self) -> None:
        """Let old failures cost less, and log who is left out and who is back, for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._settle is not None:
                self._settle(self._clock())
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
