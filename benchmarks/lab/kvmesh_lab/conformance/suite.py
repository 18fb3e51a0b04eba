"""Runs a case within its time, and says how it ended."""

import asyncio
import time
from typing import Final, TypeVar

from kvmesh_lab.conformance.case import Broken, Case, NotTried, Result, Verdict

B = TypeVar("B")

CASE_S: Final = 60.0
"""No case takes longer, whatever its picker does."""


async def run_case(bench: B, case: Case[B]) -> Result:
    """Return how one case ended."""
    began = time.monotonic()
    verdict: Verdict = "pass"
    try:
        remark = await asyncio.wait_for(case.run(bench), CASE_S)
    except NotTried as error:
        verdict, remark = "skip", str(error)
    except Broken as error:
        verdict, remark = ("fail" if case.level == "must" else "warn"), str(error)
    except TimeoutError:
        verdict = "fail" if case.level == "must" else "warn"
        remark = f"not over after {CASE_S:g} s"
    return _result(case, verdict, remark, time.monotonic() - began)


def skip_case(case: Case[B], why: str) -> Result:
    """Return the result of a case that is not tried."""
    return _result(case, "skip", why, 0.0)


def _result(case: Case[B], verdict: Verdict, remark: str, seconds: float) -> Result:
    return Result(
        name=case.name,
        verdict=verdict,
        level=case.level,
        does=case.does,
        rule=case.rule.text,
        source=case.rule.source,
        remark=remark,
        seconds=round(seconds, 3),
    )
