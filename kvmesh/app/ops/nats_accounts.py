"""`kvmesh nats-accounts`: an nkey for each process, an account for each bucket, worker, other site.

Least rights, one process one key: a worker writes its own event and heartbeat subjects and nothing
else; a router reads its bucket's stream and may purge it; a bucket's admin makes its streams. What
of another bucket or worker is not imported does not exist for a key. The server's files hold public
keys only; seeds are written once, mode 0600, and kept on later runs.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Final

from kvmesh.app.ops.nats_isolation import Account, plan_accounts
from kvmesh.app.ops.nats_members import AccountsOptions, Member, keyed_members, plan_members
from kvmesh.app.ops.nats_operator import Operator
from kvmesh.app.ops.nats_server_conf import accounts_conf, limits_of, nats_conf, write_cluster
from kvmesh.errors import ConfigError
from kvmesh.settings.types import Flat
from kvmesh.transport.nats.trust.anchors import Anchor, encode_anchors

NAME: Final = "trust.json"
READABLE: Final = 0o644


def write_trust(out: Path, members: Iterable[Member]) -> Path:
    """Write the trust file into `out`, return its path; processes read it within a second.

    It is written in place, not renamed: a container that mounts the file sees the change.
    Raises `OSError`.
    """
    anchors = (
        Anchor(one.role, one.public_key, one.bucket, one.name, one.ranks)
        for one in members
        if one.role != "biller" and one.role != "site"  # noqa: PLR1714  mypy narrows; they say nothing that is signed
    )
    path, data = out / NAME, encode_anchors(anchors)
    if not path.exists() or path.read_bytes() != data:
        path.write_bytes(data)
        path.chmod(READABLE)
    return path


def write_accounts(options: AccountsOptions) -> Path:
    """Write seeds, secrets, trust.json, accounts.conf and nats.conf, return the last one's path.

    In operator mode also credentials. A seed or secret that exists is kept; delete its file and run
    again for a new one.
    Raises `ConfigError` when a file cannot be written or a seed is not one.
    """
    try:
        members = keyed_members(options)
        write_trust(options.out, members)
        return write_server(options, plan_accounts(members, options.namespace, options.site))
    except OSError as error:
        raise ConfigError(f"--out {options.out}: {error}") from error


def write_server(options: AccountsOptions, accounts: Sequence[Account]) -> Path:
    """Write what a server reads of these accounts; return the path of nats.conf."""
    limits = limits_of(options)
    if options.operator:
        text = Operator(options, accounts).write(limits)
    else:
        text = accounts_conf(accounts, limits)
    (options.out / "accounts.conf").write_text(text, encoding="utf-8")
    if options.cluster:
        write_cluster(options)
    path = options.out / "nats.conf"
    path.write_text(nats_conf(options), encoding="utf-8")
    return path


def command(*, options: Annotated[AccountsOptions, Flat] | None = None) -> None:
    """Write nkeys and a nats-server configuration in which each process may do the least."""
    options = options or AccountsOptions()
    path = write_accounts(options)
    print(  # noqa: T201  the command's answer
        f"wrote {path} and {len(plan_members(options))} seeds; servers that run already: "
        "nats-server --signal reload. Where a bucket or worker is new, reload twice, in a cluster "
        "restart them one by one instead"
    )
