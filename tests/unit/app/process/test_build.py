"""The version that this process tells of itself."""

from importlib.metadata import version

from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.actors.wire import decode, encode
from kvmesh.app.process.build import own_version


def test_the_own_version_is_the_package_s_and_travels_in_a_heartbeat() -> None:
    beat = RouterHeartbeat("r1", "b", "", ready=True, epoch=1, version=own_version())

    assert own_version() == version("kvmesh")
    assert decode(encode(beat), RouterHeartbeat).version == own_version()
