from pathlib import Path

import pytest

from kvmesh.app.ops.mesh_plan import plan_mesh
from kvmesh.app.ops.up import describe_mesh
from kvmesh.app.process.running_mesh import announced, mesh_secret, own_secret
from kvmesh.errors import ConfigError
from kvmesh.settings.roles import UpSettings

NATS = "nats://127.0.0.1:4711"


def test_a_member_started_beside_kvmesh_up_finds_its_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    settings = UpSettings(data_dir=tmp_path / "data")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/hash.secret").write_text("s" * 32)
    (tmp_path / "mine").write_text("m" * 32)
    mesh = describe_mesh(settings, plan_mesh(settings, NATS), NATS)

    with announced(mesh):
        assert mesh_secret(None, NATS) == b"s" * 32
        assert mesh_secret(None, "nats://localhost:4711") == b"s" * 32
        assert mesh_secret(tmp_path / "mine", NATS) == b"m" * 32
        assert mesh_secret(None, "nats://127.0.0.1:4712") == b""
        assert mesh_secret(None, "") == b""
        (tmp_path / "data/hash.secret").unlink()
        with pytest.raises(ConfigError, match=r"hash\.secret"):
            mesh_secret(None, NATS)
    assert mesh_secret(None, NATS) == b""


def test_a_secret_of_ones_own_is_long_and_never_the_same() -> None:
    assert len(own_secret()) == 32
    assert own_secret() != own_secret()
