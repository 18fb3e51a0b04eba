"""Which NATS account each process lives in, and the few subjects that cross between accounts.

A subject exists in one account only. What crosses is exported by one account and imported by
another, by name; a message's reply subject never crosses, the server makes another one up.

- `bucket:NAME`: event stream, stores, routers, followers and the admin of one bucket.
- `worker:BUCKET:NAME`: one worker's key. It imports the worker's events and heartbeats, which the
  bucket's account takes, and exports the worker's commands. No JetStream.
- `meta`: meta-routers, their table and its admin. It imports the heartbeats of routers.
- `site:NAME`: another site, whose servers are leaf nodes in it. It imports the digests of this site
  and exports that one's. No two sites share an account: none hears or speaks for a third. No
  JetStream.
- `SYS`: nobody.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from kvmesh.actors.site_reporter import digest_subject
from kvmesh.actors.wire import Subjects
from kvmesh.app.ops.nats_members import Member
from kvmesh.app.ops.nats_rights import ANSWER_S

SYSTEM: Final = "SYS"
META: Final = "meta"

STORED_S: Final = 10
"""A record that is not acknowledged by then is acknowledged no more: the worker sends it again."""

HEARD_S: Final = 1
"""Nobody answers a heartbeat. The server keeps where an answer would go for so long: 0.5 KB for
each message of a worker that asks for one; 2 minutes is its default."""


class Export(msgspec.Struct, frozen=True):
    """A subject that the accounts `to` may import. `answer_s` bounds the answer of a service."""

    subject: str
    kind: Literal["service", "stream"]
    to: tuple[str, ...]
    answer_s: int = 0


class Import(msgspec.Struct, frozen=True):
    """A subject of another account."""

    subject: str
    kind: Literal["service", "stream"]
    account: str


class Account(msgspec.Struct, frozen=True):
    """What lives together. Without `jetstream` it can hold no stream, without `leafs` no server of
    others may join.
    """

    name: str
    members: tuple[Member, ...] = ()
    exports: tuple[Export, ...] = ()
    imports: tuple[Import, ...] = ()
    jetstream: bool = False
    leafs: bool = False


def plan_accounts(members: Sequence[Member], namespace: str, site: str = "") -> list[Account]:
    """Return the accounts of these members, the system account last; `site` is the own one."""
    buckets = list(dict.fromkeys(member.bucket for member in members if member.bucket))
    homes = tuple(one for one in members if not one.bucket and one.role != "site")
    peers = [one for one in members if one.role == "site"]
    imports = tuple(
        Import(Subjects(namespace, one).routers(), "stream", bucket_account(one)) for one in buckets
    )
    accounts: list[Account] = []
    for bucket in buckets:
        subjects = Subjects(namespace, bucket)
        its = [member for member in members if member.bucket == bucket]
        workers = [member for member in its if member.role == "worker"]
        others = tuple(member for member in its if member.role != "worker")
        accounts.append(_bucket(subjects, others, workers))
        accounts += [_worker(subjects, worker) for worker in workers]
    to = tuple(site_account(one.name) for one in peers)
    exports = (Export(digest_subject(site), "stream", to),) if peers else ()
    imports += tuple(
        Import(digest_subject(one.name), "stream", site_account(one.name)) for one in peers
    )
    meta = Account(META, homes, exports, imports, jetstream=True)
    return [*accounts, *(_site(site, one) for one in peers), meta, Account(SYSTEM)]


def bucket_account(bucket: str) -> str:
    """Return the name of a bucket's account.

    No bucket or worker has a colon in its name, so no two accounts are alike. A dot would make
    subjects of the system account that the server does not expect (nats-server issue 2602).
    """
    return f"bucket:{bucket}"


def worker_account(worker: Member) -> str:
    """Return the name of a worker's account."""
    return worker.label.replace(".", ":")


def site_account(name: str) -> str:
    """Return the name of another site's account."""
    return f"site:{name}"


def _site(own: str, peer: Member) -> Account:
    exports = (Export(digest_subject(peer.name), "stream", (META,)),)
    imports = (Import(digest_subject(own), "stream", META),)
    return Account(site_account(peer.name), (peer,), exports, imports, leafs=True)


def _bucket(subjects: Subjects, members: tuple[Member, ...], workers: Sequence[Member]) -> Account:
    exports = [Export(subjects.routers(), "stream", (META,))]
    if workers:
        to = tuple(worker_account(worker) for worker in workers)
        exports.append(Export(subjects.events(), "service", to, STORED_S))
        exports.append(Export(subjects.heartbeats(), "service", to, HEARD_S))
    imports = tuple(
        Import(subjects.control(name), "service", worker_account(worker))
        for worker in workers
        for name in worker.names
    )
    name = bucket_account(subjects.bucket)
    return Account(name, members, tuple(exports), imports, jetstream=True)


def _worker(subjects: Subjects, worker: Member) -> Account:
    home = bucket_account(subjects.bucket)
    exports = tuple(
        Export(subjects.control(name), "service", (home,), ANSWER_S) for name in worker.names
    )
    imports = tuple(
        Import(subject, "service", home)
        for name in worker.names
        for subject in (subjects.events(name), subjects.heartbeats(name))
    )
    return Account(worker_account(worker), (worker,), exports, imports)
