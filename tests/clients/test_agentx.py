"""aiperf's agentic scenario judges kvmesh and other routers over the same pretend engines.

Run by `make test-clients`, about half an hour. docs/measured/comparison.md has its figures.
"""

import pytest

from benchmarks.measure import Comparison
from benchmarks.programs.bench_agentx import AMPLE, PRESSED, Load, aiperf, judge_doors, judged_doors

pytestmark = [pytest.mark.clients, pytest.mark.timeout(3600)]

READ = "read / theoretical"
TTFT = "TTFT p90 ms"
PRESSED_SHARE = 1.0
"""Of the best peer's cache read: peers never move a session, and are late where that waits."""

NOISE = 0.1
"""Runs of a door differ by so much of what they read: two of one build had .90 and .97 of the best
peer's, twelve seeds in the simulator (benchmarks/programs) as much as agents that never move.
"""


def judged(blocks: int) -> dict[str, Comparison]:
    """Return figures by whose door it is."""
    if aiperf() is None:
        pytest.skip("no aiperf: python -m tests.clients.client_venv")
    doors, _ = judged_doors()
    found = judge_doors(doors, Load(blocks), rounds=2)
    ours = {one.name for one in doors if one.ours}
    return {
        whose: Comparison(
            found.title,
            found.baseline,
            {name: rounds for name, rounds in found.samples.items() if (name in ours) is is_ours},
        )
        for whose, is_ours in (("ours", True), ("peers", False))
    }


def medians(found: Comparison, figure: str) -> list[float]:
    return [found.median(name, figure) or 0.0 for name in found.samples]


def test_with_ample_caches_nearly_all_is_read_that_could_be() -> None:
    found = judged(AMPLE)

    assert min(medians(found["ours"], READ)) >= 0.95


def test_under_pressure_as_much_is_read_as_by_the_best_peer_and_sooner_answered() -> None:
    found = judged(PRESSED)
    if not found["peers"].samples:
        pytest.skip("no peer is installed: make .venv/.peers")

    assert min(medians(found["ours"], READ)) >= (PRESSED_SHARE - NOISE) * max(
        medians(found["peers"], READ)
    )
    assert max(medians(found["ours"], TTFT)) <= min(medians(found["peers"], TTFT))
