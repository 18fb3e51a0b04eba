from pathlib import Path

import pytest

from kvmesh.app.ops.nats_members import AccountsOptions, keyed_members, plan_members
from kvmesh.errors import ConfigError


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (AccountsOptions(peer_site=("us",)), "--peer-site 'us': name this one, too: --site"),
        (AccountsOptions(site="e.u"), "--site 'e.u'"),
        (AccountsOptions(site="eu", peer_site=("us=http://h",)), "--peer-site 'us=http://h'"),
        (AccountsOptions(site="eu", peer_site=("eu",)), "is --site itself"),
        (AccountsOptions(site="eu", peer_site=("us", "us")), "'us': it is named twice"),
    ],
)
def test_sites_are_named_once_and_by_one_word(options: AccountsOptions, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan_members(options)


def test_a_worker_and_a_router_of_one_name_do_not_hear_each_others_commands() -> None:
    members = plan_members(AccountsOptions(worker=("code/x",), router=("code/x",)))

    worker, router = (
        set(one.rights.subscribe) for one in members if one.role in ("worker", "router")
    )
    assert not worker & router


def test_members_say_who_they_are_and_how_their_key_is_known(tmp_path: Path) -> None:
    options = AccountsOptions(out=tmp_path, worker=("code/w7:2",), router=("code/*",))

    members = {member.file_name: member for member in keyed_members(options)}
    again = keyed_members(options)

    worker, router = members["worker.code.w7.nk"], members["router.code.any.nk"]
    assert (worker.role, worker.bucket, worker.name, worker.ranks) == ("worker", "code", "w7", 2)
    assert (router.role, router.bucket, router.name, router.ranks) == ("router", "code", "*", 1)
    assert all(member.public_key.startswith("U") for member in again)
    assert len({member.public_key for member in again}) == len(again)
    assert again == list(members.values())


def test_each_bucket_has_an_admin_of_its_own_and_the_meta_routers_have_one() -> None:
    members = plan_members(AccountsOptions(worker=("code/x:2",), router=("chat/y", "code/z")))

    admins = [one for one in members if one.role == "admin"]
    assert [one.label for one in admins] == ["admin", "admin.code", "admin.chat"]
    assert [one.names for one in members if one.role == "worker"] == [("x-dp0", "x-dp1")]
