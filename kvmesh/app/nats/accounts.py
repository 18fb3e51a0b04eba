"""`kvmesh nats-accounts`: an nkey for each process, and what each may say and hear on NATS.

Least rights, one process one key: a worker writes its own event and heartbeat subjects and nothing
else; a router reads its bucket's stream and may purge it; the admin account makes streams. The
server's file holds public keys only; seeds are written once, mode 0600, and kept on later runs.
"""

import secrets
from pathlib import Path
from typing import Annotated

import msgspec

from kvmesh.app.nats.keys import SEED_BYTES, write_secret
from kvmesh.app.nats.members import AccountsOptions, keyed_members, plan_members
from kvmesh.app.nats.trust import write_trust
from kvmesh.errors import ConfigError
from kvmesh.settings.types import Flat


def write_accounts(options: AccountsOptions) -> Path:
    """Write seeds, trust.json, accounts.conf and nats.conf; return the last one's path.

    A seed that exists is kept; delete its file and run again to give that process a new key.
    Raises `ConfigError` when a file cannot be written or a seed is not one.
    """
    try:
        members = keyed_members(options)
        write_trust(options.out, members)
        users = [
            {"nkey": member.public_key, "permissions": member.rights.to_config()}
            for member in members
        ]
        accounts = {"KVMESH": {"jetstream": "enabled", "users": users}, "SYS": {}}
        text = msgspec.json.format(msgspec.json.encode(accounts), indent=2).decode()
        (options.out / "accounts.conf").write_text(
            f"# Written by kvmesh nats-accounts: public keys only.\naccounts: {text}\n"
            "system_account: SYS\n",
            encoding="utf-8",
        )
        text = SERVER.format(store_dir=options.store_dir, monitor_host=options.monitor_host)
        if options.cluster:
            write_cluster(options)
            text += "include ./cluster.conf\n"
        path = options.out / "nats.conf"
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {options.out}: {error}") from error
    return path


SERVER = """\
# Written by kvmesh nats-accounts.
listen: 0.0.0.0:4222
http: {monitor_host}:8222
jetstream {{
  store_dir: "{store_dir}"
  sync_interval: always
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


def write_cluster(options: AccountsOptions) -> None:
    """Write cluster.conf with a new password, mode 0600, unless there is one."""
    password = secrets.token_urlsafe(SEED_BYTES)
    hosts = [host.strip() for host in options.cluster.split(",") if host.strip()]
    routes = ", ".join(f'"nats://route:{password}@{host}:6222"' for host in hosts)
    text = CLUSTER.format(namespace=options.namespace, password=password, routes=routes)
    write_secret(options.out / "cluster.conf", text.encode(), options.owner)


def command(*, options: Annotated[AccountsOptions, Flat] | None = None) -> None:
    """Write nkeys and a nats-server configuration in which each process may do the least."""
    options = options or AccountsOptions()
    path = write_accounts(options)
    print(f"wrote {path} and {len(plan_members(options))} seeds")  # noqa: T201  the command's answer
