import json
from pathlib import Path

from kvmesh.app.ops.nats_isolation import plan_accounts
from kvmesh.app.ops.nats_members import AccountsOptions, plan_members
from kvmesh.app.ops.nats_server_conf import accounts_conf, limits_of, nats_conf

OPTIONS = AccountsOptions(
    worker=("chat/w0",), router=("chat/r0",), account_max_bytes=1000, account_max_memory_bytes=10
)


def blocks(options: AccountsOptions) -> dict[str, dict[str, object]]:
    accounts = plan_accounts(plan_members(options), options.namespace)
    text = accounts_conf(accounts, limits_of(options))
    found: dict[str, dict[str, object]] = json.loads(text[text.index("{") : text.rindex("}") + 1])
    return found


def test_accounts_with_streams_have_limits_and_the_others_no_streams() -> None:
    found = blocks(OPTIONS)

    assert found["bucket:chat"]["jetstream"] == {"max_file": 1000, "max_mem": 10}
    assert "jetstream" in found["meta"]
    assert "jetstream" not in found["worker:chat:w0"]
    assert found["SYS"] == {}


def test_copies_on_other_servers_count_and_so_the_limits_grow_with_them() -> None:
    options = AccountsOptions(cluster="a, b,c", account_max_bytes=1000, account_max_memory_bytes=10)

    limits = limits_of(options)

    assert (limits.disk, limits.memory) == (3000, 30)


def test_no_answer_to_a_heartbeat_is_waited_for_longer_than_a_second() -> None:
    exports = blocks(OPTIONS)["bucket:chat"]["exports"]

    assert isinstance(exports, list)
    assert [(next(iter(one.items())), one.get("threshold")) for one in exports] == [
        (("stream", "kvmesh.rt.chat.*"), None),
        (("service", "kvmesh.ev.chat.*"), "10s"),
        (("service", "kvmesh.hb.chat.*"), "1s"),
    ]
    assert [one["accounts"] for one in exports] == [
        ["meta"],
        ["worker:chat:w0"],
        ["worker:chat:w0"],
    ]


def test_the_server_refuses_requests_with_fields_it_does_not_know() -> None:
    text = nats_conf(AccountsOptions(store_dir=Path("/somewhere")))

    assert "strict: true" in text
    assert 'store_dir: "/somewhere"' in text
    assert "cluster.conf" not in text
