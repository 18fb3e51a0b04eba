"""`kvmesh nats-accounts`: an nkey for each process, and what each may say and hear on NATS.

Least rights, one process one key: a worker writes its own event and heartbeat subjects and nothing
else; a router reads its bucket's stream and may purge it; the admin account makes streams. The
server's file holds public keys only; seeds are written once, mode 0600, and kept on later runs.
"""

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import nkeys
from cyclopts import Parameter

from kvmesh.actors.wire import Subjects
from kvmesh.errors import ConfigError
from kvmesh.settings.member_name import check_name
from kvmesh.settings.types import Flat
from kvmesh.transport.nats.layout import (
    home_bucket,
    inbox_prefix,
    meta_bucket,
    session_bucket,
    snapshot_bucket,
)

MEMBER = re.compile(r"([A-Za-z0-9_-]{1,64})/([A-Za-z0-9_-]{1,64}|\*)(?::([1-9][0-9]{0,3}))?")
SEED_BYTES = 32
ANSWER = {"max": 1, "expires": "5s"}
"""A process may answer the command it was sent, once, within 5 s."""

Role = Literal["worker", "router", "meta-router", "admin"]


@dataclass(frozen=True, kw_only=True)
class AccountsOptions:
    """`kvmesh nats-accounts`."""

    out: Path = Path("nats-accounts")
    """Directory for nats.conf, accounts.conf and seeds/ROLE.BUCKET.NAME.nk."""
    worker: tuple[str, ...] = ()
    """`bucket/name`, or `bucket/name:RANKS` for data-parallel ranks; repeat. `bucket/*`: one key
    for all workers of a bucket, which then trust each other."""
    router: tuple[str, ...] = ()
    """`bucket/name`; repeat. `bucket/*`: one key for all replicas of a bucket."""
    namespace: str = "kvmesh"
    """First word of every subject."""
    cluster: str = ""
    """Host names of the servers of a cluster, commas between them; start each with --name."""
    monitor_host: str = "127.0.0.1"
    """Address of the servers' monitoring port 8222; it has no login. 0.0.0.0 for probes."""
    store_dir: Path = Path("/data")
    """Where the servers of nats.conf keep their streams."""
    owner: Annotated[int | None, Parameter(show_default=False)] = None
    """User id that shall own the seed files (needs root), e.g. of a container's user."""


class Rights(msgspec.Struct, frozen=True):
    """What one process may do. `answers`: reply to a command it was sent."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    answers: bool = False

    def to_config(self) -> dict[str, Any]:
        """Return the `permissions` block; an empty list of publish subjects forbids all."""
        publish = {"allow": list(self.publish)} if self.publish else {"deny": [">"]}
        config: dict[str, Any] = {
            "publish": publish,
            "subscribe": {"allow": list(self.subscribe)},
        }
        if self.answers:
            config["allow_responses"] = ANSWER
        return config


class Member(msgspec.Struct, frozen=True):
    """One process that logs in. Meta-routers and the admin have neither bucket nor name."""

    role: Role
    rights: Rights
    bucket: str = ""
    name: str = ""

    @property
    def file_name(self) -> str:
        """Return the name of its seed file; `*` becomes `any`."""
        parts = [self.role, self.bucket, "any" if self.name == "*" else self.name]
        return ".".join(part for part in parts if part) + ".nk"


def worker_rights(subjects: Subjects, name: str, ranks: int = 1) -> Rights:
    """Return a worker's rights: its own subjects, its own inbox, its own commands.

    With more than one rank the worker speaks as NAME-dp0, NAME-dp1 and so on. No right to
    JetStream's API or to any KV bucket: who may write one key of a bucket may wipe it all.
    """
    names = [name] if ranks == 1 else [f"{name}-dp{rank}" for rank in range(ranks)]
    publish = [subjects.events(one) for one in names] + [subjects.heartbeats(one) for one in names]
    subscribe = [f"{inbox_prefix('worker', subjects.bucket, name)}.>"]
    subscribe += [subjects.control(one) for one in names]
    return Rights(tuple(publish), tuple(subscribe), answers=True)


def router_rights(subjects: Subjects, name: str) -> Rights:
    """Return a router's rights: read and purge its bucket's stream, keep snapshots, speak to all.

    Streams are made by the admin account (`kvmesh nats-streams`), not by routers.
    """
    stream = subjects.stream()
    meta, snapshots = meta_bucket(subjects.namespace), snapshot_bucket(subjects)
    sessions = session_bucket(subjects)
    stores = (f"KV_{meta}", f"OBJ_{snapshots}", f"KV_{sessions}")
    publish = [right for one in (stream, *stores) for right in follow_rights(one)]
    for one in stores:
        publish += [f"$JS.API.STREAM.MSG.GET.{one}"]
        publish += [f"$JS.API.DIRECT.GET.{one}", f"$JS.API.DIRECT.GET.{one}.>"]
    publish += [f"$JS.API.STREAM.PURGE.{one}" for one in (stream, f"OBJ_{snapshots}")]
    publish += [f"$KV.{meta}.>", f"$KV.{sessions}.>", f"$O.{snapshots}.>", "$JS.FC.>"]
    publish += [subjects.control(), subjects.router_control()]
    publish += [subjects.bookings(name), subjects.routers(name)]
    subscribe = (
        f"{inbox_prefix('router', subjects.bucket, name)}.>",
        subjects.heartbeats(),
        subjects.bookings(),
        subjects.routers(),
        subjects.router_control(name),
    )
    return Rights(tuple(publish), subscribe, answers=True)


def follow_rights(stream: str) -> list[str]:
    """Return what following a stream takes."""
    # A plain consumer is made on ….S, a named or filtered one below it.
    made = [f"$JS.API.CONSUMER.CREATE.{stream}", f"$JS.API.CONSUMER.CREATE.{stream}.>"]
    verbs = ("INFO", "DELETE", "MSG.NEXT")
    used = [f"$JS.API.CONSUMER.{verb}.{stream}.*" for verb in verbs]
    return [f"$JS.API.STREAM.INFO.{stream}", *made, *used]


def meta_router_rights(namespace: str) -> Rights:
    """Return a meta-router's rights: hear the routers of all buckets, and share with the other
    meta-routers where conversations are; all of them have one key.
    """
    homes = home_bucket(namespace)
    publish = (*follow_rights(f"KV_{homes}"), f"$KV.{homes}.>", "$JS.FC.>")
    return Rights(publish, (Subjects(namespace, "*").routers(), f"{inbox_prefix('meta-router')}.>"))


def admin_rights() -> Rights:
    """Return the rights of the job that makes streams: JetStream's API, and nothing else."""
    return Rights(("$JS.API.>",), (f"{inbox_prefix('admin')}.>",))


def plan_members(options: AccountsOptions) -> list[Member]:
    """Return everybody who logs in. Raises `ConfigError` for a name no subject may hold."""
    check_name(options.namespace, "--namespace")
    members = [
        Member("admin", admin_rights()),
        Member("meta-router", meta_router_rights(options.namespace)),
    ]
    for text in options.worker:
        bucket, name, ranks = parse_member("--worker", text)
        rights = worker_rights(Subjects(options.namespace, bucket), name, ranks)
        members.append(Member("worker", rights, bucket, name))
    for text in options.router:
        bucket, name, _ = parse_member("--router", text)
        rights = router_rights(Subjects(options.namespace, bucket), name)
        members.append(Member("router", rights, bucket, name))
    files = [member.file_name for member in members]
    for member in members:
        if files.count(member.file_name) > 1:
            raise ConfigError(
                f"{member.bucket}/{member.name} is named twice: each worker and router of a bucket "
                "needs its own name"
            )
    return members


def parse_member(flag: str, text: str) -> tuple[str, str, int]:
    """Return (bucket, name, ranks). Raises `ConfigError` naming the flag."""
    match = MEMBER.fullmatch(text)
    if match is None:
        raise ConfigError(f"{flag} {text!r}: write bucket/name, e.g. chat/worker-0")
    bucket, name, ranks = match.groups()
    return bucket, name, int(ranks or 1)


def write_accounts(options: AccountsOptions) -> Path:
    """Write seeds, accounts.conf and nats.conf; return the last one's path.

    A seed that exists is kept; delete its file and run again to give that process a new key.
    Raises `ConfigError` when a file cannot be written or a seed is not one.
    """
    members = plan_members(options)
    seeds = options.out / "seeds"
    try:
        seeds.mkdir(parents=True, exist_ok=True)
        seeds.chmod(0o711)
        users = [
            {
                "nkey": public_key(seeds / member.file_name, options.owner),
                "permissions": member.rights.to_config(),
            }
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


def write_secret(path: Path, data: bytes, owner: int | None) -> None:
    """Write a file only its owner may read; one that exists keeps its content."""
    if not path.exists():
        # Created with its mode, not changed to it: nobody can open it in between.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    if owner is not None:
        os.chown(path, owner, -1)


def public_key(path: Path, owner: int | None) -> str:
    """Return the public key of the seed in `path`, making the seed when there is none."""
    seed = bytes(nkeys.encode_seed(os.urandom(SEED_BYTES), nkeys.PREFIX_BYTE_USER))
    write_secret(path, seed, owner)
    try:
        return bytes(nkeys.from_seed(bytearray(path.read_bytes().strip())).public_key).decode()
    except (nkeys.NkeysError, ValueError) as error:
        raise ConfigError(f"{path}: not an nkey seed: {error!r}; delete it for a new one") from (
            error
        )


def command(*, options: Annotated[AccountsOptions, Flat] | None = None) -> None:
    """Write nkeys and a nats-server configuration in which each process may do the least."""
    options = options or AccountsOptions()
    path = write_accounts(options)
    print(f"wrote {path} and {len(plan_members(options))} seeds")  # noqa: T201  the command's answer
