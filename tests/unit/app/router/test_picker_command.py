from kvmesh.app.mesh.mesh import RouterMesh
from kvmesh.app.router.command import RouterServer
from kvmesh.app.router.picker_command import picker_server
from kvmesh.settings.picker import PickerSettings
from kvmesh.settings.roles import NatsSettings, RouterSettings

ROUTER = RouterSettings(router_id="one", nats=NatsSettings(nats_url="nats://127.0.0.1:1"))


def test_a_picker_is_a_replica_that_meta_routers_take_for_a_follower() -> None:
    mesh = picker_server(PickerSettings(router=ROUTER)).mesh

    assert isinstance(mesh, RouterMesh)
    beat = mesh.heartbeat()
    assert (beat.router, beat.follower, beat.picker, beat.decides) == ("one", True, True, True)


def test_the_same_settings_make_a_router_that_is_none() -> None:
    mesh = RouterServer(ROUTER).mesh

    assert isinstance(mesh, RouterMesh)
    assert (mesh.heartbeat().follower, mesh.heartbeat().picker) == (False, False)
