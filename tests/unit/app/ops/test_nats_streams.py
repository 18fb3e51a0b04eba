import asyncio
from pathlib import Path

import pytest

from kvmesh.app.ops.nats_streams import StreamsOptions, command, login_as_admin, make_streams
from kvmesh.errors import ConfigError
from kvmesh.settings.roles import NatsSettings


def test_each_bucket_is_made_by_its_own_admin(tmp_path: Path) -> None:
    (tmp_path / "admin.chat.nk").touch()
    (tmp_path / "admin.code.creds").touch()
    (tmp_path / "admin.code.nk").touch()
    settings = NatsSettings(nats_url="nats://there", nats_creds=Path("other"))
    options = StreamsOptions(bucket=(), admin_keys=tmp_path, nats=settings)

    chat, code = login_as_admin(options, "chat"), login_as_admin(options, "code")

    assert chat.nats_creds == tmp_path / "admin.chat.nk"
    assert code.nats_creds == tmp_path / "admin.code.creds"
    assert chat.nats_url == "nats://there"


def test_without_a_directory_one_login_makes_all() -> None:
    settings = NatsSettings(nats_creds=Path("admin.nk"))

    assert login_as_admin(StreamsOptions(bucket=(), nats=settings), "chat") is settings


@pytest.mark.parametrize(
    ("present", "missing"), [("admin.nk", "admin.code.nk"), ("admin.code.nk", "admin.nk")]
)
def test_a_missing_key_is_named_before_anything_is_made(
    tmp_path: Path, present: str, missing: str
) -> None:
    (tmp_path / present).touch()
    options = StreamsOptions(bucket=("code",), admin_keys=tmp_path)

    with pytest.raises(ConfigError, match=rf"no {missing}.*run kvmesh nats-accounts"):
        asyncio.run(make_streams(options))


def test_a_bucket_must_be_named() -> None:
    with pytest.raises(ConfigError, match="--bucket"):
        command(options=StreamsOptions(bucket=()))
