"""What this process tells of itself."""

from importlib.metadata import version

from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.actors.wire import decode, encode
from kvmesh.app.process.build import Build, own_version
from kvmesh.formats import FormatRange, Formats


def test_the_own_version_is_the_package_s_and_travels_in_a_heartbeat() -> None:
    beat = RouterHeartbeat("r1", "b", "", ready=True, epoch=1, version=own_version())

    assert own_version() == version("kvmesh")
    assert decode(encode(beat), RouterHeartbeat).version == own_version()


def test_a_build_says_in_a_line_what_runs_and_what_it_reads() -> None:
    formats = Formats(journal=FormatRange(1, 2), manifest=FormatRange(3, 4))

    line = str(Build("1.4.0", "3.11.7", formats))

    assert line == (
        "1.4.0, Python 3.11.7, formats: journal 1 to 2, bookings 1, snapshot 1, manifest 3 to 4, "
        "programs 1"
    )
