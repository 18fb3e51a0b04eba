import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvmesh.app.ops.nats_accounts import write_accounts
from kvmesh.app.ops.nats_members import AccountsOptions
from kvmesh.errors import ConfigError


@pytest.fixture
def options(tmp_path: Path) -> AccountsOptions:
    return AccountsOptions(
        out=tmp_path, operator=True, worker=("code/w7", "code/w8"), router=("code/r1",)
    )


def claims(token: str) -> dict[str, Any]:
    part = token.split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return found


def accounts(options: AccountsOptions) -> dict[str, dict[str, Any]]:
    """Return the claims of accounts by name, from what the server reads."""
    lines = (options.out / "accounts.conf").read_text().splitlines()
    tokens = [line.split(": ")[1] for line in lines if line.startswith("  A")]
    return {found["name"]: found for found in map(claims, tokens)}


def user(options: AccountsOptions, label: str) -> dict[str, Any]:
    return claims((options.out / "creds" / f"{label}.creds").read_text().splitlines()[1])


def test_every_import_comes_with_the_exporters_word(options: AccountsOptions) -> None:
    write_accounts(options)

    found = accounts(options)
    names = {one["sub"]: name for name, one in found.items()}
    for name, account in found.items():
        for wanted in account["nats"]["imports"]:
            word = claims(wanted["token"])
            assert word["iss"] == wanted["account"]
            assert names[word["sub"]] == name
            assert word["nats"]["subject"] == wanted["subject"]
    assert user(options, "worker.code.w7")["iss"] == found["worker:code:w7"]["sub"]


def test_only_the_accounts_of_sites_take_leaf_nodes(options: AccountsOptions) -> None:
    write_accounts(replace(options, worker=(), site="eu", peer_site=("us",)))

    leafs = {name: one["nats"]["limits"]["leaf"] for name, one in accounts(options).items()}
    assert leafs == {"bucket:code": 0, "site:us": -1, "meta": 0, "SYS": 0}
    assert user(options, "site.us")["nats"]["pub"] == {"allow": ["kvmesh_sites.us.*"]}


def test_a_key_that_is_gone_is_revoked(options: AccountsOptions) -> None:
    write_accounts(options)
    old = user(options, "worker.code.w7")
    router = user(options, "router.code.r1")
    (options.out / "seeds/worker.code.w7.nk").unlink()

    write_accounts(replace(options, router=("code/r2",)))

    found = accounts(options)
    assert found["worker:code:w7"]["nats"]["revocations"] == {old["sub"]: old["iat"]}
    assert found["bucket:code"]["nats"]["revocations"] == {router["sub"]: router["iat"]}
    assert found["worker:code:w8"]["nats"]["revocations"] == {}


def test_a_token_with_other_rights_than_now_is_revoked(options: AccountsOptions) -> None:
    write_accounts(options)
    old = user(options, "worker.code.w7")

    write_accounts(replace(options, worker=("code/w7:2", "code/w8")))

    new = user(options, "worker.code.w7")
    assert new["sub"] == old["sub"]
    assert new["iat"] > old["iat"]
    revoked = accounts(options)["worker:code:w7"]["nats"]["revocations"]
    assert revoked == {old["sub"]: old["iat"]}


def test_keys_of_the_wrong_kind_and_a_damaged_record_are_named(options: AccountsOptions) -> None:
    write_accounts(options)
    signing = options.out / "signing"
    seed = (options.out / "seeds/admin.nk").read_bytes()

    for damaged in (b"{", b'{"since_s": 1, "users": {"\xff": 2}}'):
        (signing / "issued.json").write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"issued\.json.*revoked: restore it"):
            write_accounts(options)
    (signing / "operator.nk").write_bytes(seed)
    with pytest.raises(ConfigError, match=r"operator\.nk: the seed of another kind"):
        write_accounts(options)
