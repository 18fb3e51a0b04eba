"""Small simulated worlds for tests."""

from collections.abc import Callable, Iterable, Sequence

from kvmesh.actors.kernel import Effect, Message
from tests.doubles.sim.driver import Birth, Process, ProcessPlan, Simulation


class Probe:
    """Remembers (time, message), and answers as it was told to."""

    def __init__(
        self,
        answers: Callable[[Message], Sequence[Effect]] = lambda _: (),
        name: str = "probe",
    ) -> None:
        self.name = name
        self.received: list[tuple[float, Message]] = []
        self._answers = answers

    def receive(self, message: Message, now: float) -> Iterable[Effect]:
        self.received.append((now, message))
        return self._answers(message)

    def messages(self) -> list[Message]:
        return [message for _, message in self.received]


def add_probe(
    sim: Simulation,
    name: str = "p",
    answers: Callable[[Message], Sequence[Effect]] = lambda _: (),
    *,
    subscriptions: tuple[tuple[str, str], ...] = (),
    tail_to: str = "",
    immortal: bool = False,
) -> tuple[Process, list[Probe]]:
    """Add a process of one probe; return it and the probes of all its lives."""
    lives: list[Probe] = []

    def build(birth: Birth) -> list[Probe]:
        assert birth.incarnation == len(lives) + 1
        lives.append(Probe(answers))
        return [lives[-1]]

    plan = ProcessPlan(name, build, subscriptions, tail_to, immortal=immortal)
    return sim.add(plan), lives
