"""The files a nats-server reads: its accounts with users, rights and borders, and its cluster."""

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from kvmesh.app.ops.nats_isolation import SYSTEM, Account
from kvmesh.app.ops.nats_keys import write_secret
from kvmesh.app.ops.nats_members import AccountsOptions
from kvmesh.transport.nats.trust.nkey import KEY_BYTES

SERVER = """\
# Written by kvmesh nats-accounts.
listen: 0.0.0.0:4222
http: {monitor_host}:8222
jetstream {{
  store_dir: "{store_dir}"
  sync_interval: always
  strict: true
}}
include ./accounts.conf
"""

CLUSTER = """\
# Written by kvmesh nats-accounts: holds the password of the routes, keep it secret.
cluster {{
  name: {namespace}
  listen: 0.0.0.0:6222
  authorization: {{ user: route, password: "{password}" }}
  routes: [ {routes} ]
}}
"""


class Limits(msgspec.Struct, frozen=True):
    """What the streams of one account may take over all servers, bytes."""

    disk: int
    memory: int


def limits_of(options: AccountsOptions) -> Limits:
    """Return the limits of one account: each server of a cluster may hold a copy of all."""
    servers = max(len(cluster_hosts(options)), 1)
    return Limits(servers * options.account_max_bytes, servers * options.account_max_memory_bytes)


def accounts_conf(accounts: Sequence[Account], limits: Limits) -> str:
    """Return accounts.conf: public keys and rights, no secret."""
    blocks = {account.name: _block(account, limits) for account in accounts}
    text = msgspec.json.format(msgspec.json.encode(blocks), indent=2).decode()
    return (
        f"# Written by kvmesh nats-accounts: public keys only.\naccounts: {text}\n"
        f"system_account: {SYSTEM}\n"
    )


def _block(account: Account, limits: Limits) -> dict[str, Any]:
    block: dict[str, Any] = {}
    if account.jetstream:
        block["jetstream"] = {"max_file": limits.disk, "max_mem": limits.memory}
    if account.members:
        block["users"] = [
            {"nkey": member.public_key, "permissions": member.rights.to_config()}
            for member in account.members
        ]
    if account.exports:
        block["exports"] = [
            {one.kind: one.subject, "accounts": list(one.to)}
            | ({"threshold": f"{one.answer_s}s"} if one.answer_s else {})
            for one in account.exports
        ]
    if account.imports:
        block["imports"] = [
            {one.kind: {"account": one.account, "subject": one.subject}} for one in account.imports
        ]
    return block


def nats_conf(options: AccountsOptions) -> str:
    """Return nats.conf, which includes the others."""
    text = SERVER.format(store_dir=options.store_dir, monitor_host=options.monitor_host)
    return text + ("include ./cluster.conf\n" if options.cluster else "")


def cluster_hosts(options: AccountsOptions) -> list[str]:
    """Return the hosts of --cluster."""
    return [host.strip() for host in options.cluster.split(",") if host.strip()]


def write_cluster(options: AccountsOptions) -> None:
    """Write cluster.conf with a new password, mode 0600, unless there is one."""
    password = secrets.token_urlsafe(KEY_BYTES)
    routes = ", ".join(f'"nats://route:{password}@{host}:6222"' for host in cluster_hosts(options))
    text = CLUSTER.format(namespace=options.namespace, password=password, routes=routes)
    write_secret(options.out / "cluster.conf", text.encode(), options.owner)
