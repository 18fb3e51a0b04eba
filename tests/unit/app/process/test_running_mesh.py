import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvmesh.app.ops.doctor import DoctorSettings, find_patients
from kvmesh.app.ops.mesh_plan import plan_mesh
from kvmesh.app.ops.snapshot import find_buckets
from kvmesh.app.ops.up import describe_mesh
from kvmesh.app.process.running_mesh import (
    DEFAULT_URL,
    RunningMesh,
    announced,
    find_mesh,
    find_meshes,
    find_url,
    look_up,
)
from kvmesh.embed.login import NatsLogin
from kvmesh.errors import ConfigError
from kvmesh.settings.roles import NatsSettings, UpSettings


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "runtime"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return folder


def mesh_at(port: int, data_dir: Path = Path("/data/.kvmesh")) -> RunningMesh:
    settings = UpSettings(http_port=port, engines=3, data_dir=data_dir)
    return describe_mesh(settings, plan_mesh(settings, "nats://n:1"), "nats://n:1")


def test_a_mesh_is_found_while_it_runs_and_no_longer() -> None:
    mesh = mesh_at(8100)

    assert find_mesh("--url") is None
    with announced(mesh):
        assert find_meshes() == [mesh]
        assert find_url("") == "http://127.0.0.1:8100"
        assert find_url("http://else:1") == "http://else:1"
    assert find_meshes() == []
    assert find_url("") == DEFAULT_URL


def test_an_engine_is_named_with_a_router_of_its_bucket() -> None:
    mesh = mesh_at(8100)

    assert mesh.buckets == ("chat", "code")
    assert [(one.url[-4:], one.bucket, one.router_url[-4:]) for one in mesh.engines] == [
        ("8200", "chat", "8101"),
        ("8201", "code", "8103"),
        ("8202", "chat", "8101"),
    ]
    assert look_up("http://127.0.0.1:8201", [mesh]) == mesh.engines[1]
    assert look_up("http://127.0.0.1:9999", [mesh]) is None


def test_behind_a_gateway_the_first_picker_shows_the_mesh() -> None:
    settings = UpSettings(gateway=True)

    mesh = describe_mesh(settings, plan_mesh(settings, "nats://n:1"), "nats://n:1")

    assert (mesh.url[-4:], mesh.view_url[-4:]) == ("8000", "8001")


def test_a_file_that_a_killed_process_left_is_removed(runtime: Path) -> None:
    program = (
        "import os, sys; from tests.unit.app.process.test_running_mesh import mesh_at, announced\n"
        "with announced(mesh_at(8100)): os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    (left,) = (runtime / "kvmesh").glob("up-*.json")

    assert find_meshes() == []
    assert not left.exists()


def test_of_several_meshes_the_one_of_the_working_directory_is_meant(
    tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = mesh_at(8100, tmp_path / ".kvmesh"), mesh_at(9100)
    with announced(here):
        (runtime / "kvmesh" / f"up-{os.getpid()}.json").rename(runtime / "kvmesh" / "up-1.json")
        with announced(there):
            with pytest.raises(ConfigError, match=r"2 meshes run here: .*8100.*9100.* --url"):
                find_mesh("--url")
            monkeypatch.chdir(tmp_path)
            assert find_mesh("--url") == here


@pytest.mark.parametrize("kind", ["garbage", "open folder"])
def test_what_others_may_have_written_does_not_count(runtime: Path, kind: str) -> None:
    with announced(mesh_at(8100)):
        if kind == "garbage":
            (path,) = (runtime / "kvmesh").glob("up-*.json")
            path.write_text("{")
        else:
            (runtime / "kvmesh").chmod(0o777)

        assert find_meshes() == []


def test_where_no_file_can_be_written_the_mesh_runs_all_the_same(runtime: Path) -> None:
    (runtime / "kvmesh").mkdir(mode=0o755)

    with announced(mesh_at(8100)):
        assert find_meshes() == []


def test_snapshots_are_those_of_all_buckets_of_the_running_mesh() -> None:
    named = NatsSettings(nats_url="nats://named:1")

    assert find_buckets("", NatsSettings()) == (("default",), NatsSettings())
    with announced(mesh_at(8100)):
        buckets, nats = find_buckets("", NatsSettings())
        assert (buckets, nats.nats_url) == (("chat", "code"), "nats://n:1")
        assert find_buckets("code", NatsSettings())[0] == ("code",)
        assert find_buckets("", named) == (("default",), named)


def test_the_doctor_looks_at_every_engine_of_the_running_mesh() -> None:
    with pytest.raises(ConfigError, match="name an engine with --engine-url"):
        find_patients(DoctorSettings())
    with announced(mesh_at(8100)):
        found = [
            (one.engine_url[-4:], one.router_url[-4:]) for one in find_patients(DoctorSettings())
        ]
        one = find_patients(DoctorSettings(engine_url="http://127.0.0.1:8201/v1"))
        other = DoctorSettings(engine_url="http://gpu:8000")

        assert found == [("8200", "8101"), ("8201", "8103"), ("8202", "8101")]
        assert [patient.router_url for patient in one] == ["http://127.0.0.1:8103"]
        assert find_patients(other) == [other]


def test_a_program_that_names_no_server_takes_part_in_the_mesh_that_runs() -> None:
    mesh = mesh_at(8100)

    alone = NatsLogin().settings("")
    with announced(mesh):
        found, named = NatsLogin().settings(""), NatsLogin().settings("nats://other:4222")

    assert (alone.nats_url, alone.namespace) == ("", "kvmesh")
    assert (found.nats_url, found.namespace) == ("nats://n:1", mesh.namespace)
    assert named.nats_url == "nats://other:4222"
