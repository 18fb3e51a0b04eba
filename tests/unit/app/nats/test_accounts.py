import os
import stat
from pathlib import Path

import pytest

from kvmesh.actors.wire import Subjects
from kvmesh.app.nats.accounts import (
    AccountsOptions,
    command,
    meta_router_rights,
    plan_members,
    router_rights,
    worker_rights,
    write_accounts,
)
from kvmesh.errors import ConfigError

CODE = Subjects("kvmesh", "code")


def test_a_worker_may_write_its_own_two_subjects_and_nothing_else() -> None:
    rights = worker_rights(CODE, "w7")

    assert rights.publish == ("kvmesh.ev.code.w7", "kvmesh.hb.code.w7")
    assert rights.subscribe == ("_INBOX.worker.code.w7.>", "kvmesh.ctl.code.w7")
    assert rights.to_config()["allow_responses"] == {"max": 1, "expires": "5s"}


def test_a_worker_with_ranks_speaks_for_each_of_them() -> None:
    rights = worker_rights(CODE, "w7", ranks=2)

    assert rights.publish == tuple(
        f"kvmesh.{kind}.code.w7-dp{rank}" for kind in ("ev", "hb") for rank in (0, 1)
    )
    assert "kvmesh.ctl.code.w7-dp1" in rights.subscribe


def test_a_router_may_neither_make_nor_delete_streams_nor_write_events() -> None:
    rights = router_rights(CODE, "r1")

    assert not [each for each in rights.publish if ".ev." in each or ".hb." in each]
    for verb in ("CREATE", "UPDATE", "DELETE"):
        assert not [each for each in rights.publish if f"STREAM.{verb}" in each]
    assert "$JS.API.STREAM.PURGE.KVMESH_EVENTS_code" in rights.publish
    assert "kvmesh.seq.code.r1" in rights.publish
    assert "kvmesh.rctl.code.r1" in rights.subscribe


def test_a_meta_router_listens_and_writes_the_homes_of_conversations_alone() -> None:
    config = meta_router_rights("kvmesh").to_config()

    written = [one for one in config["publish"]["allow"] if not one.startswith("$JS.")]
    asked = [one for one in config["publish"]["allow"] if one.startswith("$JS.API.")]
    assert written == ["$KV.kvmesh_homes.>"]
    assert asked
    assert all("KV_kvmesh_homes" in one for one in asked)
    for verb in ("CREATE", "UPDATE", "DELETE", "PURGE"):
        assert not [each for each in asked if f"STREAM.{verb}" in each]
    assert "allow_responses" not in config


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
        "meta-router.nk",
        "router.code.any.nk",
        "worker.code.w7.nk",
    }
    for path in (tmp_path / "seeds").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not [seed for seed in seeds.values() if seed.decode() in first]
    assert again == first
    assert rotated != first


@pytest.mark.parametrize(
    "member", ["w7", "code/", "/w7", "code/w.7", "code/>", "a b/w", "code/w:0"]
)
def test_a_name_no_subject_may_hold_is_refused(member: str) -> None:
    for options in (AccountsOptions(worker=(member,)), AccountsOptions(router=(member,))):
        with pytest.raises(ConfigError, match="bucket/name"):
            plan_members(options)


@pytest.mark.parametrize(
    "options",
    [
        AccountsOptions(worker=("code/w7", "code/w7:2")),
        AccountsOptions(router=("code/*", "code/*")),
    ],
)
def test_one_name_for_two_processes_is_refused(options: AccountsOptions) -> None:
    with pytest.raises(ConfigError, match=r"code/(w7|\*) is named twice"):
        plan_members(options)


def test_a_worker_and_a_router_of_one_name_do_not_hear_each_others_commands() -> None:
    members = plan_members(AccountsOptions(worker=("code/x",), router=("code/x",)))

    worker, router = (set(member.rights.subscribe) for member in members[2:])
    assert not worker & router


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
