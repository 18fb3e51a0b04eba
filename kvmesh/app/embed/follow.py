"""`kvmesh.follow`: a bucket of a live mesh, for an index, metrics and a router of one's own."""

import asyncio
import contextlib
from pathlib import Path

import msgspec

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.actors.wire import decode
from kvmesh.app.embed.follower import Follower
from kvmesh.app.embed.login import NatsLogin
from kvmesh.app.embed.opening import Opening
from kvmesh.app.plane import event_plane, subjects_for
from kvmesh.errors import CodecError, ConfigError, TransportError
from kvmesh.observe import log_to_stdlib
from kvmesh.settings.member_name import router_name
from kvmesh.settings.roles import CostSettings, NatsSettings, RouterSettings


class FollowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a program follows a bucket.

    `name`: its own, unique among the bucket's routers and followers, and that of its NATS key;
    "": made from host and process. `block_size`, tokens: None: what the first worker heard says.
    `wait_s`: how long to wait for NATS, the journal and a worker; `math.inf`: for ever.
    `hash_secret_file`: the routers' and workers'. `url`: where it takes requests as a router does
    (`/v1/…`, `/ready`, `/health`), so that meta-routers send it some; "": nowhere.
    """

    name: str = ""
    block_size: int | None = None
    wait_s: float = 30.0
    hash_secret_file: Path | None = None
    url: str = ""
    login: NatsLogin = NatsLogin()


_DEFAULTS = FollowOptions()


def follow(
    nats_url: str, bucket: str = "default", options: FollowOptions = _DEFAULTS
) -> Opening[Follower]:
    """Follow a bucket of a live mesh, as its routers do.

    `listener = await kvmesh.follow(nats_url, bucket)` is closed by `await listener.close()`,
    `async with kvmesh.follow(nats_url, bucket) as listener:` with its block. `nats_url` is written
    as for `--nats-url`. It returns when the index holds what the routers' do and some worker may be
    given requests. Raises `TransportError` when that takes longer than `options.wait_s`, or NATS
    refuses; `ConfigError` for a name that no subject may hold.
    """

    async def opened() -> Follower:
        log_to_stdlib()
        nats = options.login.settings(nats_url)
        name = router_name(options.name)
        block_size, began_s = options.block_size, asyncio.get_running_loop().time()
        if block_size is None:
            block_size = await _hear_block_size(nats, bucket, name, options.wait_s)
        elif block_size < 1:
            raise ConfigError(f"block_size is {block_size}, it must be at least 1")
        settings = RouterSettings(
            bucket=bucket,
            router_id=name,
            nats=nats,
            cost=CostSettings(
                kv_cache_block_size=block_size, hash_secret_file=options.hash_secret_file
            ),
        )
        follower = Follower(settings, options.url)
        passed_s = asyncio.get_running_loop().time() - began_s
        try:
            await follower.open(max(0.0, options.wait_s - passed_s))
        except BaseException:
            await follower.close()
            raise
        return follower

    return Opening(opened)


async def _hear_block_size(nats: NatsSettings, bucket: str, name: str, wait_s: float) -> int:
    """Return what the first worker that is heard says, in tokens. Raises `TransportError`."""
    subjects = subjects_for(nats, bucket)
    plane = event_plane(nats, "follower", bucket, name)
    heard = asyncio.get_running_loop().create_future()

    def hear(subject: str, data: bytes) -> None:
        del subject
        with contextlib.suppress(CodecError):
            size = decode(data, WorkerHeartbeat).block_size
            if size > 0 and not heard.done():
                heard.set_result(size)

    try:
        async with asyncio.timeout(None if wait_s == float("inf") else wait_s):
            await plane.connect(patient=True)
            await plane.bus.subscribe(subjects.heartbeats(), hear)
            size: int = await heard
            return size
    except TimeoutError as error:
        reason = plane.waiting() or "no worker is heard"
        raise TransportError(
            f"following bucket {bucket!r} at {nats.nats_url}: {reason} after {wait_s:g} s; is a "
            "worker of that bucket running?"
        ) from error
    finally:
        await plane.close()
