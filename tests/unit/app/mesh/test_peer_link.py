import time
from typing import get_args

import pytest

from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.app.mesh.mesh import RouterMesh
from kvmesh.app.mesh.peer_link import Role
from kvmesh.app.mesh.sharing_mesh import SharingMesh
from kvmesh.app.router.command import RouterServer
from kvmesh.settings.roles import NatsSettings, RouterSettings

NATS = NatsSettings(nats_url="nats://127.0.0.1:1")


def mesh_of(role: Role, *, kv_events: bool = True) -> RouterMesh | SharingMesh:
    settings = RouterSettings(router_id="own", kv_events=kv_events, nats=NATS)
    server = RouterServer(settings)
    if kv_events:
        return RouterMesh(settings, "own", server.router, server.index, role=role)
    return SharingMesh(settings, "own", server.router, None, role=role)


@pytest.mark.parametrize("kv_events", [True, False])
@pytest.mark.parametrize("role", get_args(Role))
def test_only_a_router_is_there_for_meta_routers(role: Role, *, kv_events: bool) -> None:
    if role == "follower" and not kv_events:
        pytest.skip("followers read the journal")

    beat = mesh_of(role, kv_events=kv_events).heartbeat()

    assert beat.follower == (role != "router")
    assert beat.picker == (role == "picker")
    assert beat.decides == (role != "follower")


def test_pickers_are_siblings_that_decide_and_followers_are_not() -> None:
    mesh = mesh_of("picker")
    for name, follower, picker in (("r", False, False), ("p", True, True), ("f", True, False)):
        beat = RouterHeartbeat(
            router=name,
            bucket="default",
            url="http://10.0.0.1:1",
            ready=True,
            epoch=1,
            follower=follower,
            picker=picker,
            version=f"1.0-{name}",
        )
        mesh.link.registry.receive(beat, time.monotonic())

    assert [one.router for one in mesh.replicas()] == ["own", "p", "r"]
    reported = mesh.link.versions()
    assert (reported.routers, reported.followers) == (("1.0-r",), ("1.0-f",))
    assert len(reported.pickers) == 2
