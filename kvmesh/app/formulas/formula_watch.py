"""What people are told of formulas of one's own that fail."""

from collections.abc import Iterable
from typing import Final

from kvmesh.core.cost.own import OwnFormula, OwnStatistics
from kvmesh.observe import get_logger

TELL_S: Final = 60.0
"""A failing formula is logged, and warned of, once in so many seconds."""


class FormulaWatch:
    """Counts, warns of and logs what formulas do wrong; `look` is called once a second."""

    def __init__(self, formulas: Iterable[OwnFormula]) -> None:
        self._formulas = {one.name: one for one in formulas}
        self._told: dict[str, tuple[float, OwnStatistics]] = {}
        self._warnings: dict[str, str] = {}

    def statistics(self) -> dict[tuple[str, ...], OwnStatistics]:
        """Return the counts of each formula, by its name."""
        return {(name,): one.statistics() for name, one in self._formulas.items()}

    def warnings(self) -> tuple[str, ...]:
        """Return a line for each formula that is off, or failed in the last minute."""
        return tuple(self._warnings.values())

    def look(self, now: float) -> None:
        """Log what failed since it was last told: once a minute at most, and when it goes off."""
        for name, formula in self._formulas.items():
            told_s, told = self._told.get(name, (-TELL_S, _NOTHING))
            found = formula.statistics()
            goes_off = found.off and not told.off
            if now - told_s < TELL_S and not goes_off:
                continue
            self._warnings.pop(name, None)
            if found.faults > told.faults:
                get_logger().warning(
                    "cost formula failed, the default decided",
                    formula=name,
                    failures=found.faults - told.faults,
                    last=found.last_fault,
                    off=found.off,
                )
                self._told[name] = (now, found)
            if found.off or found.faults > told.faults:
                self._warnings[name] = _warning(name, found, found.faults - told.faults)


_NOTHING: Final = OwnStatistics(0, 0, off=False, last_fault="")


def _warning(name: str, found: OwnStatistics, lately: int) -> str:
    if found.off:
        return (
            f"cost formula {name} failed too often ({found.last_fault}) and is off: predicted-time "
            "decides until this process is restarted, or a policy names the formula anew"
        )
    return f"cost formula {name} failed {lately} times ({found.last_fault}): predicted-time decided"
