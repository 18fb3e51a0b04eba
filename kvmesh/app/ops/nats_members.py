"""Who logs in at NATS: the processes named to `kvmesh nats-accounts`, each with a key."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter

from kvmesh.actors.wire import Subjects
from kvmesh.app.ops.nats_keys import public_key, write_hash_secret
from kvmesh.app.ops.nats_rights import (
    Rights,
    admin_rights,
    biller_rights,
    meta_router_rights,
    rank_names,
    router_rights,
    site_rights,
    worker_rights,
)
from kvmesh.errors import ConfigError
from kvmesh.settings.member_name import check_name
from kvmesh.settings.types import Positive

MEMBER = re.compile(r"([A-Za-z0-9_-]{1,64})/([A-Za-z0-9_-]{1,64}|\*)(?::([1-9][0-9]{0,3}))?")

Role = Literal["worker", "router", "meta-router", "biller", "admin", "site"]


@dataclass(frozen=True, kw_only=True)
class AccountsOptions:
    """`kvmesh nats-accounts`."""

    out: Path = Path("nats-accounts")
    """Directory for nats.conf, accounts.conf, trust.json, seeds/ROLE.BUCKET.NAME.nk and each
    bucket's seeds/hash.BUCKET.secret (--hash-secret-file)."""
    worker: tuple[str, ...] = ()
    """`bucket/name`, or `bucket/name:RANKS` for data-parallel ranks; repeat. `bucket/*`: one key
    for all workers of a bucket, which then trust each other."""
    router: tuple[str, ...] = ()
    """`bucket/name`; repeat. `bucket/*`: one key for all replicas of a bucket."""
    biller: tuple[str, ...] = ()
    """`bucket/name`; repeat. A program of yours that reads the bucket's record of usage, by a
    durable consumer of that name."""
    site: str = ""
    """Name of this site, as of `kvmesh meta-router --site`. Default: there are no sites."""
    peer_site: tuple[str, ...] = ()
    """Name of another site; repeat. It gets an account, and seeds/site.NAME.nk is what its NATS
    servers join with as leaf nodes. Digests cross, nothing else does."""
    operator: bool = False
    """Operator mode: accounts.conf holds tokens signed by an operator's key, and processes log in
    with creds/ROLE.BUCKET.NAME.creds (--nats-creds). Keep signing/ away from servers."""
    namespace: str = "kvmesh"
    """First word of every subject."""
    cluster: str = ""
    """Host names of the servers of a cluster, commas between them; start each with --name."""
    monitor_host: str = "127.0.0.1"
    """Address of the servers' monitoring port 8222; it has no login. 0.0.0.0 for probes."""
    store_dir: Path = Path("/data")
    """Where the servers of nats.conf keep their streams."""
    account_max_bytes: Positive = 4 * 1024**3
    """Disk that one account's streams may take on each server: a bucket's event stream of
    --stream-max-bytes, its snapshots and tables."""
    account_max_memory_bytes: Positive = 256 * 1024**2
    """Memory of the same."""
    owner: Annotated[int | None, Parameter(show_default=False)] = None
    """User id that shall own the seed files (needs root), e.g. of a container's user."""


class Member(msgspec.Struct, frozen=True):
    """One process that logs in. Meta-routers and their admin have neither bucket nor name, the
    servers of another site have its name and no bucket.

    `name` `*` is everybody of that role in the bucket. A worker with more than one of `ranks`
    speaks as NAME-dp0, NAME-dp1 and so on. `public_key` is "" until `keyed_members` finds it.
    """

    role: Role
    rights: Rights
    bucket: str = ""
    name: str = ""
    ranks: int = 1
    public_key: str = ""

    @property
    def label(self) -> str:
        """Return `ROLE.BUCKET.NAME`, the name of its files; `*` becomes `any`."""
        parts = [self.role, self.bucket, "any" if self.name == "*" else self.name]
        return ".".join(part for part in parts if part)

    @property
    def file_name(self) -> str:
        """Return the name of its seed file."""
        return f"{self.label}.nk"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names it speaks by on the mesh: one for each rank."""
        return rank_names(self.name, self.ranks)


def plan_members(options: AccountsOptions) -> list[Member]:
    """Return everybody who logs in. Raises `ConfigError` for a name no subject may hold."""
    check_name(options.namespace, "--namespace")
    members = [
        Member("admin", admin_rights()),
        Member("meta-router", meta_router_rights(options.namespace, options.site)),
        *_peers(options),
    ]
    for text in options.worker:
        bucket, name, ranks = parse_member("--worker", text)
        rights = worker_rights(Subjects(options.namespace, bucket), name, ranks)
        members.append(Member("worker", rights, bucket, name, ranks))
    for text in options.router:
        bucket, name, _ = parse_member("--router", text)
        rights = router_rights(Subjects(options.namespace, bucket), name)
        members.append(Member("router", rights, bucket, name))
    for text in options.biller:
        bucket, name, _ = parse_member("--biller", text)
        rights = biller_rights(Subjects(options.namespace, bucket), name)
        members.append(Member("biller", rights, bucket, name))
    buckets = dict.fromkeys(member.bucket for member in members if member.bucket)
    members += [Member("admin", admin_rights(), bucket) for bucket in buckets]
    files = Counter(member.file_name for member in members)
    for member in members:
        if files[member.file_name] > 1:
            raise ConfigError(
                f"{member.bucket}/{member.name} is named twice: each worker and router of a bucket "
                "needs its own name"
            )
    return members


def _peers(options: AccountsOptions) -> list[Member]:
    """Return the servers of other sites. Raises `ConfigError`."""
    own, peers = options.site, options.peer_site
    if own:
        check_name(own, "--site")
    elif peers:
        raise ConfigError(f"--peer-site {peers[0]!r}: name this one, too: --site")
    for name in peers:
        check_name(name, "--peer-site")
        if name == own or peers.count(name) > 1:
            raise ConfigError(f"--peer-site {name!r}: it is named twice, or is --site itself")
    return [Member("site", site_rights(own, name), name=name) for name in peers]


def parse_member(flag: str, text: str) -> tuple[str, str, int]:
    """Return (bucket, name, ranks). Raises `ConfigError` naming the flag."""
    match = MEMBER.fullmatch(text)
    if match is None:
        raise ConfigError(f"{flag} {text!r}: write bucket/name, e.g. chat/worker-0")
    bucket, name, ranks = match.groups()
    return bucket, name, int(ranks or 1)


def keyed_members(options: AccountsOptions) -> list[Member]:
    """Return everybody who logs in with their public keys, making the seeds that are missing, and
    each bucket's secret of block hashes.

    Raises `ConfigError` for a bad name or a file that holds no seed, `OSError` for one that cannot
    be written.
    """
    seeds = options.out / "seeds"
    members = plan_members(options)
    seeds.mkdir(parents=True, exist_ok=True)
    seeds.chmod(0o711)
    for bucket in dict.fromkeys(member.bucket for member in members if member.bucket):
        write_hash_secret(seeds / f"hash.{bucket}.secret", options.owner)
    return [
        msgspec.structs.replace(
            member, public_key=public_key(seeds / member.file_name, options.owner)
        )
        for member in members
    ]
