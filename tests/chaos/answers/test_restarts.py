"""Meta-routers that start wait for their first view, whatever their broker does; those that are
stopped serve what was sent to them.
"""

from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.chaos.answers.restarts import Fate, Manner, Restarts

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(1200)]


@pytest.fixture
async def restarts(tmp_path: Path) -> AsyncGenerator[Restarts]:
    found = Restarts(tmp_path)
    try:
        await found.start()
        yield found
    finally:
        await found.stop()


async def try_all(restarts: Restarts, tries: int) -> Counter[str]:
    seen = Counter[str]()
    for number in range(tries):
        fate: Fate = "frozen" if number % 2 else "dead"
        outcomes = await restarts.strike(number, fate)
        print(f"try {number}, {fate}: {dict(outcomes)}")  # noqa: T201
        seen += outcomes
    return seen


async def test_front_doors_that_start_beside_a_server_that_is_away_refuse_nothing(
    restarts: Restarts,
) -> None:
    seen = await try_all(restarts, 2)

    assert seen.keys() == {"whole"}, seen


@pytest.mark.parametrize("in_turn", [False, True], ids=["together", "in turn"])
@pytest.mark.parametrize("manner", ["killed", "stopped"])
async def test_front_doors_that_are_restarted_refuse_nothing(
    restarts: Restarts, manner: Manner, in_turn: bool
) -> None:
    fates: tuple[Fate, ...] = ("well", "dead", "frozen")

    seen = [await restarts.strike(n, fate, manner, in_turn=in_turn) for n, fate in enumerate(fates)]

    assert sum(seen, Counter()).keys() == {"whole"}, seen


@pytest.mark.chaos
async def test_fifty_starts_beside_a_server_that_is_away_refuse_nothing(
    restarts: Restarts,
) -> None:
    seen = await try_all(restarts, 50)

    assert seen.keys() == {"whole"}, seen
