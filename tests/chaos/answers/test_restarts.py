"""Meta-routers that start wait for their first view, whatever their broker does."""

from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.chaos.answers.restarts import Fate, Restarts

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


@pytest.mark.chaos
async def test_fifty_starts_beside_a_server_that_is_away_refuse_nothing(
    restarts: Restarts,
) -> None:
    seen = await try_all(restarts, 50)

    assert seen.keys() == {"whole"}, seen
