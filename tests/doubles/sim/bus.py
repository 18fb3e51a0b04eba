"""The simulated bus: subscribers by pattern; messages may be late, lost, garbled or overtaken."""

from kvmesh.actors.kernel import Effect, Publish
from kvmesh.actors.messages import BusMessage
from tests.doubles.sim.driver import Process, Simulation
from tests.doubles.sim.links import SimLinks


class SimBus:
    """Core NATS without a server: at most once, in order per sender and receiver unless a fault.

    `links` say who hears whom: a parted server's clients stay connected and hear only each other.
    """

    def __init__(self, sim: Simulation) -> None:
        self.links = SimLinks(sim)
        self._sim = sim
        self._arrivals_s: dict[tuple[str, str], float] = {}
        sim.carriers[Publish] = self._carry_publish

    def publish(self, subject: str, data: bytes, sender: str = "") -> None:
        """Send to every subscriber whose pattern matches."""
        for process in self._sim.processes.values():
            for pattern, actor in process.plan.subscriptions:
                if matches(pattern, subject):
                    self._send(process, actor, sender, BusMessage(subject, data))

    def _carry_publish(self, process: Process, _: str, effect: Effect) -> None:
        assert isinstance(effect, Publish)
        if not process.is_cut_off(self._sim.now):
            self.publish(effect.subject, effect.data, process.name)

    def _send(self, to: Process, actor: str, sender: str, message: BusMessage) -> None:
        sim, plan = self._sim, self._sim.faults.plan
        if sim.strike("lose_message", plan.lose_message):
            return
        if sim.strike("garbage", plan.garbage):
            message = BusMessage(message.subject, sim.faults.garble(message.data))
        longer_s = self.links.delay_s(sender, to.name)
        if longer_s is None:
            return
        arrival_s = sim.now + longer_s + sim.faults.delay(sim.now)
        if not sim.strike("reorder", plan.reorder):
            arrival_s = max(arrival_s, self._arrivals_s.get((sender, to.name), 0.0))
            self._arrivals_s[sender, to.name] = arrival_s
        incarnation = to.incarnation
        sim.at(arrival_s - sim.now, lambda: self._arrive(to, incarnation, actor, message))

    def _arrive(self, to: Process, incarnation: int, actor: str, message: BusMessage) -> None:
        if not to.is_cut_off(self._sim.now):
            self._sim.deliver(to, incarnation, actor, message)


def matches(pattern: str, subject: str) -> bool:
    """Return whether a NATS pattern covers a subject: `*` is one token, a last `>` the rest."""
    wanted, parts = pattern.split("."), subject.split(".")
    for position, part in enumerate(wanted):
        if part == ">":
            return len(parts) > position
        if position >= len(parts) or part not in ("*", parts[position]):
            return False
    return len(wanted) == len(parts)
