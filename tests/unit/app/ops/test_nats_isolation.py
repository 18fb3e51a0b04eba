import pytest

from kvmesh.app.ops.nats_isolation import META, SYSTEM, Account, Export, Import, plan_accounts
from kvmesh.app.ops.nats_members import AccountsOptions, plan_members

OPTIONS = AccountsOptions(
    worker=("chat/w0", "chat/w1:2", "pool/*"), router=("chat/r0", "chat/f0", "pool/r0", "empty/r0")
)


@pytest.fixture
def accounts() -> dict[str, Account]:
    found = plan_accounts(plan_members(OPTIONS), "kvmesh")
    assert len({one.name for one in found}) == len(found)
    return {one.name: one for one in found}


def test_each_bucket_and_each_worker_key_lives_in_an_account(accounts: dict[str, Account]) -> None:
    assert set(accounts) == {
        "bucket:chat",
        "bucket:pool",
        "bucket:empty",
        "worker:chat:w0",
        "worker:chat:w1",
        "worker:pool:any",
        META,
        SYSTEM,
    }
    assert {name for name, one in accounts.items() if one.jetstream} == {
        "bucket:chat",
        "bucket:pool",
        "bucket:empty",
        META,
    }
    labels = [member.label for member in accounts["bucket:chat"].members]
    assert labels == ["router.chat.r0", "router.chat.f0", "admin.chat"]
    assert [one.label for one in accounts[META].members] == ["admin", "meta-router"]
    assert not accounts[SYSTEM].members


def test_each_other_site_has_an_account_in_which_only_digests_are() -> None:
    options = AccountsOptions(router=("chat/r0",), site="eu", peer_site=("us", "ap"))

    found = {one.name: one for one in plan_accounts(plan_members(options), "m", "eu")}

    us, meta = found["site:us"], found[META]
    assert [one.label for one in us.members] == ["site.us"]
    assert us.leafs
    assert not us.jetstream
    assert us.exports == (Export("kvmesh_sites.us.*", "stream", (META,)),)
    assert us.imports == (Import("kvmesh_sites.eu.*", "stream", META),)
    assert meta.exports == (Export("kvmesh_sites.eu.*", "stream", ("site:us", "site:ap")),)
    assert meta.imports[1:] == (
        Import("kvmesh_sites.us.*", "stream", "site:us"),
        Import("kvmesh_sites.ap.*", "stream", "site:ap"),
    )
    assert [one.label for one in meta.members] == ["admin", "meta-router"]


def test_a_worker_imports_its_own_events_and_heartbeats_alone(
    accounts: dict[str, Account],
) -> None:
    worker = accounts["worker:chat:w1"]

    assert {(one.subject, one.account) for one in worker.imports} == {
        (f"kvmesh.{kind}.chat.w1-dp{rank}", "bucket:chat")
        for kind in ("ev", "hb")
        for rank in (0, 1)
    }
    assert {one.kind for one in worker.imports} == {"service"}
    assert [(one.subject, one.to) for one in worker.exports] == [
        (f"kvmesh.ctl.chat.w1-dp{rank}", ("bucket:chat",)) for rank in (0, 1)
    ]


def test_what_one_account_imports_another_exports_to_it(accounts: dict[str, Account]) -> None:
    for importer in accounts.values():
        for wanted in importer.imports:
            bucket = wanted.subject.split(".")[2]
            offers = [
                one
                for one in accounts[wanted.account].exports
                if one.subject in (wanted.subject, wanted.subject.rpartition(".")[0] + ".*")
            ]
            assert [one.kind for one in offers] == [wanted.kind]
            assert importer.name in offers[0].to
            assert importer.name == META or f":{bucket}" in importer.name


def test_every_export_names_who_may_import_it(accounts: dict[str, Account]) -> None:
    for account in accounts.values():
        for export in account.exports:
            assert export.to
            assert (export.answer_s > 0) == (export.kind == "service")


def test_two_buckets_share_no_account_and_no_import(accounts: dict[str, Account]) -> None:
    imported = {one.account for one in accounts["bucket:chat"].imports}

    assert imported == {"worker:chat:w0", "worker:chat:w1"}
    assert not accounts["bucket:empty"].imports
