"""A mesh of real processes under load, its parts killed and frozen: nothing acknowledged is lost.

`python -m tests.chaos --servers 3 --seed 1 --seconds 600` runs rounds for as long as you like.
"""

import time
from pathlib import Path

import pytest

from tests.chaos.mesh import MeshSize
from tests.chaos.rounds import running_rounds
from tests.chaos.storm import Fault

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROUNDS_S = 240.0


async def test_a_killed_server_router_and_sidecar_and_a_frozen_engine_cost_nothing(
    tmp_path: Path,
) -> None:
    faults = (
        Fault(0.0, "server", which=0, frozen=False, lasts_s=0.3),
        Fault(0.2, "engine", which=0, frozen=True, lasts_s=1.0),
        Fault(0.4, "router", which=1, frozen=False, lasts_s=0.2),
        Fault(0.8, "sidecar", which=1, frozen=False, lasts_s=0.2),
    )

    async with running_rounds(tmp_path, MeshSize(speedup=50.0)) as rounds:
        await rounds.run(1, faults)


@pytest.mark.chaos
@pytest.mark.parametrize("size", [MeshSize(), MeshSize(servers=3, routers=3, ranks=(1, 2, 1))])
async def test_storm_after_storm_costs_nothing(
    tmp_path: Path, size: MeshSize, request: pytest.FixtureRequest
) -> None:
    if "chaos" not in request.config.getoption("-m"):
        pytest.skip("takes minutes: make chaos")
    end_s, seed = time.monotonic() + ROUNDS_S, 1

    async with running_rounds(tmp_path, size) as rounds:
        while time.monotonic() < end_s:
            print(await rounds.run(seed))  # noqa: T201
            seed += 1
