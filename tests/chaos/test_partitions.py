"""Servers of the broker are parted under load, HTTP is whole: nothing may be refused."""

from collections.abc import Iterator

import httpx
import pytest

from tests.chaos.load import Load, failed
from tests.chaos.mesh import ChaosMesh, MeshSize, running_mesh

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(300)]

PARTED_S = 20.0
AFTER_S = 30.0
# Every sidecar at n2, a router at each, the front door at n0: whichever server is cut off, somebody
# hears no worker, and for n0 and n2 the front door hears no router with workers.
SIZE = MeshSize(servers=3, routers=3, speedup=4.0, homes=(2, 2, 0, 1, 2, 0))


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosMesh]:
    with running_mesh(tmp_path_factory.mktemp("mesh"), SIZE) as mesh:
        yield mesh


async def trusts(mesh: ChaosMesh) -> dict[str, set[str]]:
    """Return how far each router trusts the events of the workers it may use."""
    found: dict[str, set[str]] = {}
    async with httpx.AsyncClient(timeout=10.0) as client:
        for router in mesh.routers:
            status = (await client.get(f"{router.url}/v1/status")).json()
            found[router.name] = {one["trust"] for one in status["workers"] if one["usable"]}
    return found


@pytest.mark.parametrize(
    ("server", "how"),
    [
        (0, "cut"),
        pytest.param(1, "cut", marks=pytest.mark.chaos),
        pytest.param(2, "cut", marks=pytest.mark.chaos),
        pytest.param(0, "hold", marks=pytest.mark.chaos),
    ],
)
async def test_a_route_partition_refuses_nothing(mesh: ChaosMesh, server: int, how: str) -> None:
    await mesh.heal()
    load = Load(mesh)
    try:
        before = await load.during(1.0)
        (mesh.routes.cut if how == "cut" else mesh.routes.hold)(server)
        parted = await load.during(PARTED_S)
        parted_trusts = await trusts(mesh)
        mesh.routes.heal()
        after = await load.during(AFTER_S)
        healed_trusts = await trusts(mesh)
    finally:
        mesh.routes.heal()
        await load.close()

    print(f"{how} n{server}: {parted}; healed: {after}")  # noqa: T201
    assert failed(before) == {}
    assert failed(parted) == {}
    assert failed(after) == {}
    # Every sidecar is at n2: who is parted from it says that the workers only answer.
    far = {"router-0", "router-1"} if server == 2 else {f"router-{server}"}
    assert {name for name, seen in parted_trusts.items() if seen == {"approx"}} == far
    assert all(seen <= {"exact", "estimated"} for seen in healed_trusts.values())
