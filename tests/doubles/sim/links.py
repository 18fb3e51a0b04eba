"""The simulated network between processes: who hears whom, how late, and what is lost."""

from collections.abc import Collection, Iterator

from tests.doubles.sim.driver import Simulation


class Link:
    """One process's way to another. Times are virtual seconds; `loss` is a chance, 0..1."""

    __slots__ = ("delay_s", "loss", "parted_s")

    def __init__(self) -> None:
        self.parted_s = 0.0
        self.delay_s = 0.0
        self.loss = 0.0


class SimLinks:
    """Every link, whole unless told otherwise or struck by the plan's `partition`.

    Links have a direction: a partition may heal on one side only, and then one side hears the other
    and is not heard.
    """

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._links: dict[tuple[str, str], Link] = {}
        sim.at(sim.faults.plan.mischief_s, self._make_mischief)

    def link(self, sender: str, receiver: str) -> Link:
        """Return the way from one process to another, to be read or changed."""
        return self._links.setdefault((sender, receiver), Link())

    def part(self, senders: Collection[str], receivers: Collection[str], for_s: float) -> None:
        """Let nothing pass from `senders` to `receivers`, unless to themselves, for so long."""
        for link in self._between(senders, receivers):
            link.parted_s = max(link.parted_s, self._sim.now + for_s)

    def heal(self, senders: Collection[str], receivers: Collection[str]) -> None:
        """Undo every fault on the way from `senders` to `receivers`."""
        for link in self._between(senders, receivers):
            link.parted_s = link.delay_s = link.loss = 0.0

    def is_parted(self, sender: str, receiver: str) -> bool:
        """Return whether nothing passes from one to the other now."""
        link = self._links.get((sender, receiver))
        return link is not None and self._sim.now < link.parted_s

    def delay_s(self, sender: str, receiver: str) -> float | None:
        """Return what the way takes longer than others, in seconds; None for a lost message."""
        link = self._links.get((sender, receiver))
        if link is None:
            return 0.0
        lost = link.loss > 0.0 and self._sim.rng.random() < link.loss
        return None if lost or self.is_parted(sender, receiver) else link.delay_s

    def _between(self, senders: Collection[str], receivers: Collection[str]) -> Iterator[Link]:
        for sender in senders:
            for receiver in receivers:
                if sender != receiver:
                    yield self.link(sender, receiver)

    def _make_mischief(self) -> None:
        """Part the processes in two now and then; each side hears the other again when it does."""
        sim, plan = self._sim, self._sim.faults.plan
        if sim.now >= plan.until_s:
            return
        if sim.strike("partition", plan.partition):
            sides: tuple[list[str], list[str]] = ([], [])
            for name in sim.processes:
                sides[sim.faults.below(2)].append(name)
            for senders, receivers in (sides, sides[::-1]):
                self.part(senders, receivers, sim.faults.outage())
        sim.at(plan.mischief_s, self._make_mischief)
