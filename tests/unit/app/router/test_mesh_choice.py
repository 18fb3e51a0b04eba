from typing import Any

import pytest

from kvmesh.app.mesh.mesh import RouterMesh
from kvmesh.app.mesh.sharing_mesh import SharingMesh
from kvmesh.app.mesh.static_workers import StaticWorkers
from kvmesh.app.router.command import RouterServer
from kvmesh.settings.roles import NatsSettings, RouterSettings

WORKER = ("http://127.0.0.1:1",)
NATS = NatsSettings(nats_url="nats://127.0.0.1:1")


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"worker": WORKER}, StaticWorkers),
        ({"worker": WORKER, "kv_events": False}, StaticWorkers),
        ({"discover": ("dns://engines:8000",)}, StaticWorkers),
        ({"worker": WORKER, "nats": NATS}, SharingMesh),
        ({"kv_events": False, "nats": NATS}, SharingMesh),
        ({"nats": NATS}, RouterMesh),
        ({}, RouterMesh),
    ],
)
def test_settings_choose_how_a_router_learns_of_workers(
    settings: dict[str, Any], kind: type[object]
) -> None:
    assert type(RouterServer(RouterSettings(**settings)).mesh) is kind
