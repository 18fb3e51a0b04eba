import pytest

from kvmesh.app.serve.formula_watch import FormulaWatch
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.own import FAULTS_OFF, OwnFormula, no_guard
from kvmesh.core.cost.terms import NO_FLEET, Candidate
from kvmesh.core.cost.weights import NO_WEIGHTS, NoWeights

ONE = [Candidate(WorkerId("w"), 16, 160)]


class Moody:
    """A formula that fails when it is told to."""

    def __init__(self) -> None:
        self.formula = OwnFormula("b.py:f", self.cost, NoWeights, no_guard)
        self.watch = FormulaWatch([self.formula])
        self.well = True

    def cost(self, *_: object) -> float:
        return 1.0 if self.well else 1 / 0

    def ask(self, *, well: bool) -> None:
        self.well = well
        self.formula.scores(ONE, NO_FLEET, NO_WEIGHTS)


def test_failures_are_logged_once_a_minute_and_warned_of_as_long(
    capsys: pytest.CaptureFixture[str],
) -> None:
    moody = Moody()

    def check(now: float) -> tuple[bool, tuple[str, ...]]:
        moody.watch.check(now)
        return "cost formula failed" in capsys.readouterr().out, moody.watch.warnings()

    moody.ask(well=True)
    assert check(0.0) == (False, ())
    moody.ask(well=False)
    once = "cost formula b.py:f failed 1 times (ZeroDivisionError: division by zero): predicted-"
    logged, (warning,) = check(1.0)
    assert logged
    assert warning.startswith(once)
    for _ in range(2):
        moody.ask(well=False)
    assert check(60.0) == (False, (warning,))
    logged, (later,) = check(61.0)
    assert logged
    assert later.startswith("cost formula b.py:f failed 2 times")
    assert check(120.0) == (False, (later,))
    assert check(122.0) == (False, ())
    assert moody.watch.statistics()[("b.py:f",)].faults == 3


def test_a_formula_that_is_off_is_told_at_once_and_warned_of_for_good(
    capsys: pytest.CaptureFixture[str],
) -> None:
    moody = Moody()
    moody.ask(well=False)
    moody.watch.check(0.0)
    for _ in range(FAULTS_OFF):
        moody.ask(well=False)

    moody.watch.check(1.0)

    assert "off=True" in capsys.readouterr().out
    (warning,) = moody.watch.warnings()
    assert "is off: predicted-time decides until this process is restarted" in warning
    moody.watch.check(1000.0)
    assert moody.watch.warnings() == (warning,)
    assert "failed" not in capsys.readouterr().out
