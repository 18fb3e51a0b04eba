import stat
from pathlib import Path

import pytest

from kvmesh.app.ops.nats_keys import public_key, write_secret
from kvmesh.errors import ConfigError


def test_a_secret_is_written_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_secret(path, b"first", None)

    write_secret(path, b"second", None)

    assert path.read_bytes() == b"first"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_seed_that_is_none_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "x.nk").write_text("not a seed")

    with pytest.raises(ConfigError, match=r"x\.nk: not an nkey seed.*delete it"):
        public_key(tmp_path / "x.nk", None)
