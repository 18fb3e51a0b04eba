"""The layout before one account a bucket: everybody in the account KVMESH, held by permissions."""

from pathlib import Path

import msgspec

from kvmesh.actors.wire import Subjects
from kvmesh.app.ops.nats_keys import public_key
from kvmesh.app.ops.nats_members import AccountsOptions, parse_member
from kvmesh.app.ops.nats_rights import Rights, worker_rights
from kvmesh.transport.nats.layout import (
    home_bucket,
    inbox_prefix,
    meta_bucket,
    session_bucket,
    snapshot_bucket,
)

NAME = "KVMESH"
VERBS = ("INFO", "DELETE", "MSG.NEXT")


def follow_rights(stream: str) -> list[str]:
    made = [f"$JS.API.CONSUMER.CREATE.{stream}", f"$JS.API.CONSUMER.CREATE.{stream}.>"]
    used = [f"$JS.API.CONSUMER.{verb}.{stream}.*" for verb in VERBS]
    return [f"$JS.API.STREAM.INFO.{stream}", *made, *used]


def router_rights(subjects: Subjects, name: str) -> Rights:
    stream, meta = subjects.stream(), meta_bucket(subjects.namespace)
    snapshots, sessions = snapshot_bucket(subjects), session_bucket(subjects)
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


def meta_router_rights(namespace: str) -> Rights:
    homes = home_bucket(namespace)
    publish = (*follow_rights(f"KV_{homes}"), f"$KV.{homes}.>", "$JS.FC.>")
    return Rights(publish, (Subjects(namespace, "*").routers(), f"{inbox_prefix('meta-router')}.>"))


def write_single_account(options: AccountsOptions) -> str:
    """Write the seeds; return accounts.conf as `kvmesh nats-accounts` wrote it then."""
    rights = {
        "admin": Rights(("$JS.API.>",), (f"{inbox_prefix('admin')}.>",)),
        "meta-router": meta_router_rights(options.namespace),
    }
    for text in options.worker:
        bucket, name, ranks = parse_member("--worker", text)
        subjects = Subjects(options.namespace, bucket)
        rights[f"worker.{bucket}.{name}"] = worker_rights(subjects, name, ranks)
    for text in options.router:
        bucket, name, _ = parse_member("--router", text)
        rights[f"router.{bucket}.{name}"] = router_rights(Subjects(options.namespace, bucket), name)
    users = [
        {"nkey": public_key(seed(options.out, label), None), "permissions": one.to_config()}
        for label, one in rights.items()
    ]
    accounts = {NAME: {"jetstream": "enabled", "users": users}, "SYS": {}}
    return f"accounts: {msgspec.json.encode(accounts).decode()}\nsystem_account: SYS\n"


def seed(out: Path, label: str) -> Path:
    """Return the seed's path, its directory made."""
    (out / "seeds").mkdir(parents=True, exist_ok=True)
    return out / "seeds" / f"{label}.nk"
