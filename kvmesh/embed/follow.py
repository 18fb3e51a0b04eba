"""`kvmesh.follow`: a bucket of a live mesh, for an index, metrics and a router of one's own."""

from pathlib import Path

import msgspec

from kvmesh.embed.follower import Follower
from kvmesh.embed.login import NatsLogin
from kvmesh.embed.opening import Opening
from kvmesh.errors import ConfigError
from kvmesh.observe import log_to_stdlib
from kvmesh.settings.member_name import router_name
from kvmesh.settings.roles import CostSettings, RouterSettings


class FollowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a program follows a bucket.

    `name`: its own, unique among the bucket's routers and followers, and that of its NATS key;
    "": made from host and process. `block_size`, tokens: None: as the workers say.
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
    nats_url: str = "", bucket: str = "default", options: FollowOptions = _DEFAULTS
) -> Opening[Follower]:
    """Follow a bucket of a live mesh, as its routers do.

    `listener = await kvmesh.follow(nats_url, bucket)` is closed by `await listener.close()`,
    `async with kvmesh.follow(nats_url, bucket) as listener:` with its block. `nats_url` is written
    as for `--nats-url`; "" is the server of the `kvmesh up` that runs on this machine, without one
    nats://127.0.0.1:4222. It returns when the index holds what the routers' do and some worker may
    be given requests. Raises `TransportError` when that takes longer than `options.wait_s`, or NATS
    refuses; `ConfigError` for a name that no subject may hold.
    """

    async def opened() -> Follower:
        log_to_stdlib()
        size = options.block_size
        if size is not None and size < 1:
            raise ConfigError(f"block_size is {size}, it must be at least 1")
        cost = CostSettings(kv_cache_block_size=size, hash_secret_file=options.hash_secret_file)
        settings = RouterSettings(
            bucket=bucket,
            router_id=router_name(options.name),
            nats=options.login.settings(nats_url),
            cost=cost,
        )
        follower = Follower(settings, options.url)
        try:
            await follower.open(options.wait_s)
        except BaseException:
            await follower.close()
            raise
        return follower

    return Opening(opened)
