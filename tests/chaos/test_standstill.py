"""A door stands still for longer than members live without a sign: it reads before it judges."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.chaos.load import Load, failed
from tests.chaos.mesh import ChaosMesh, MeshSize, running_mesh

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(300)]

AFTER_S = 5.0


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosMesh]:
    with running_mesh(tmp_path_factory.mktemp("mesh"), MeshSize(speedup=4.0)) as mesh:
        yield mesh


@pytest.mark.parametrize(
    ("door", "frozen_s"),
    [
        ("front", 6.0),
        pytest.param("front", 10.0, marks=pytest.mark.chaos),
        pytest.param("router", 6.0, marks=pytest.mark.chaos),
        pytest.param("router", 10.0, marks=pytest.mark.chaos),
    ],
)
async def test_a_frozen_door_refuses_nothing_when_it_goes_on(
    mesh: ChaosMesh, door: str, frozen_s: float
) -> None:
    await mesh.heal()
    process = mesh.front if door == "front" else mesh.routers[0]
    load = Load(mesh)
    try:
        load.start()
        await asyncio.sleep(1.0)
        process.freeze()
        await asyncio.sleep(frozen_s)
        process.thaw()
        await asyncio.sleep(AFTER_S)
        outcomes = await load.stop()
    finally:
        process.thaw()
        await load.close()

    print(f"{process.name} frozen for {frozen_s} s: {outcomes}")  # noqa: T201
    assert failed(outcomes) == {}
