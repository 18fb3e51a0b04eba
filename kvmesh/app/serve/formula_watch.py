"""What people are told of formulas of one's own that fail."""

import asyncio
import time
from collections.abc import Iterable
from typing import Final

from kvmesh.core.cost.formulas import PREDICTED_TIME
from kvmesh.core.cost.own import OwnFormula, OwnStatistics
from kvmesh.observe import get_logger
from kvmesh.tasks import to_next

LOOK_S: Final = 1.0

LOG_S: Final = 60.0
"""A failing formula is logged, and warned of, once in so many seconds."""


class FormulaWatch:
    """Counts, warns of and logs what formulas do wrong; `check` is called once a second, by `run`
    if nobody else does. `instead` decides where a formula fails.
    """

    def __init__(
        self, formulas: Iterable[OwnFormula], *, instead: str = PREDICTED_TIME.name
    ) -> None:
        self._instead = instead
        self._formulas = {one.name: one for one in formulas}
        self._reported: dict[str, tuple[float, OwnStatistics]] = {}
        self._warnings: dict[str, str] = {}

    async def run(self) -> None:
        """Look once a second, for ever."""
        while True:
            self.check(time.monotonic())
            await asyncio.sleep(to_next(LOOK_S))

    def statistics(self) -> dict[tuple[str, ...], OwnStatistics]:
        """Return the counts of each formula, by its name."""
        return {(name,): one.statistics() for name, one in self._formulas.items()}

    def warnings(self) -> tuple[str, ...]:
        """Return a line for each formula that is off, or failed in the last minute."""
        return tuple(self._warnings.values())

    def check(self, now: float) -> None:
        """Log what failed since the last line: once a minute at most, and when it is switched
        off.
        """
        for name, formula in self._formulas.items():
            reported_s, reported = self._reported.get(name, (-LOG_S, _NOTHING))
            found = formula.statistics()
            goes_off = found.off and not reported.off
            if now - reported_s < LOG_S and not goes_off:
                continue
            self._warnings.pop(name, None)
            if found.faults > reported.faults:
                get_logger().warning(
                    "cost formula failed, the default decided",
                    formula=name,
                    failures=found.faults - reported.faults,
                    last=found.last_fault,
                    off=found.off,
                )
                self._reported[name] = (now, found)
            if found.off or found.faults > reported.faults:
                lately = found.faults - reported.faults
                self._warnings[name] = _warning(name, found, lately, self._instead)


_NOTHING: Final = OwnStatistics(0, 0, off=False, last_fault="")


def _warning(name: str, found: OwnStatistics, lately: int, instead: str) -> str:
    if found.off:
        return (
            f"cost formula {name} failed too often ({found.last_fault}) and is off: {instead} "
            "decides until this process is restarted, or a policy names the formula again"
        )
    return f"cost formula {name} failed {lately} times ({found.last_fault}): {instead} decided"
