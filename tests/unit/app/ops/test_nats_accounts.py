import os
import stat
from pathlib import Path

import pytest

from kvmesh.app.ops.nats_accounts import command, write_accounts
from kvmesh.app.ops.nats_members import AccountsOptions, plan_members
from kvmesh.errors import ConfigError


def test_seeds_are_secret_and_kept_until_deleted(tmp_path: Path) -> None:
    options = AccountsOptions(out=tmp_path, worker=("code/w7",), router=("code/*",))
    command(options=options)
    seeds = {path.name: path.read_bytes() for path in (tmp_path / "seeds").iterdir()}
    first = (tmp_path / "accounts.conf").read_text()

    write_accounts(options)
    again = (tmp_path / "accounts.conf").read_text()
    (tmp_path / "seeds/worker.code.w7.nk").unlink()
    write_accounts(options)
    rotated = (tmp_path / "accounts.conf").read_text()

    assert set(seeds) == {
        "admin.nk",
        "admin.code.nk",
        "hash.code.secret",
        "meta-router.nk",
        "router.code.any.nk",
        "worker.code.w7.nk",
    }
    for path in (tmp_path / "seeds").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not [seed for seed in seeds.values() if seed.decode() in first]
    assert again == first
    assert rotated != first


def test_a_bad_namespace_directory_or_seed_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "out/seeds").mkdir(parents=True)
    (tmp_path / "out/seeds/admin.nk").write_text("not a seed")

    with pytest.raises(ConfigError, match="--namespace"):
        plan_members(AccountsOptions(namespace="a.b"))
    with pytest.raises(ConfigError, match="--out"):
        write_accounts(AccountsOptions(out=tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"admin\.nk: not an nkey seed"):
        write_accounts(AccountsOptions(out=tmp_path / "out"))


def test_the_cluster_password_is_secret_and_kept(tmp_path: Path) -> None:
    options = AccountsOptions(out=tmp_path, cluster="nats-0, nats-1", owner=os.getuid())
    write_accounts(options)
    path = tmp_path / "cluster.conf"
    first = path.read_text()

    write_accounts(options)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "@nats-0:6222" in first
    assert "@nats-1:6222" in first
    assert path.read_text() == first
    assert "include ./cluster.conf" in (tmp_path / "nats.conf").read_text()


def test_operator_mode_writes_credentials_and_only_what_changed(tmp_path: Path) -> None:
    options = AccountsOptions(out=tmp_path, operator=True, worker=("code/w7",), router=("code/*",))
    write_accounts(options)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    first = {path: path.read_bytes() for path in files}

    write_accounts(options)
    again = {path: path.read_bytes() for path in files}

    assert again == first
    assert (tmp_path / "creds/worker.code.w7.creds").is_file()
    secret = {path for path in files if {"seeds", "creds", "signing"} & set(path.parts)}
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    server = (tmp_path / "accounts.conf").read_text()
    seeds = [path.read_text().strip() for path in secret if path.suffix == ".nk"]
    assert not [seed for seed in seeds if seed in server]


def test_the_key_of_another_site_is_nobody_who_signs(tmp_path: Path) -> None:
    write_accounts(AccountsOptions(out=tmp_path, router=("code/r0",), site="eu", peer_site=("us",)))

    assert (tmp_path / "seeds/site.us.nk").exists()
    assert '"site"' not in (tmp_path / "trust.json").read_text()


def test_a_biller_has_a_key_and_nobody_believes_what_it_says(tmp_path: Path) -> None:
    options = AccountsOptions(out=tmp_path, router=("code/r0",), biller=("code/books",))

    write_accounts(options)

    assert (tmp_path / "seeds/biller.code.books.nk").exists()
    trusted = (tmp_path / "trust.json").read_text()
    assert '"router"' in trusted
    assert '"biller"' not in trusted
    with pytest.raises(ConfigError, match="--biller 'books': write bucket/name"):
        plan_members(AccountsOptions(biller=("books",)))
