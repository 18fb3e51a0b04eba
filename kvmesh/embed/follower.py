"""A bucket followed live by a program that is no router: caches, loads, and bookings of its own."""

import asyncio
import contextlib
import random
import time
from typing import Final

import msgspec

from kvmesh.actors.router import Router
from kvmesh.app.front.front import upstream_pool, url_guard
from kvmesh.app.members.failure_care import FailureCare
from kvmesh.app.members.prober import Probe
from kvmesh.app.mesh.mesh import RouterMesh
from kvmesh.app.process.memory import index_bound, memory_limit
from kvmesh.app.process.running import first_of
from kvmesh.app.process.running_mesh import mesh_secret
from kvmesh.app.serve.routing_context import target_of
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, Tokens, namespace_root, pack_tokens, secret_mark
from kvmesh.core.index.approx import new_approx
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.block_sizes import DEFAULT_BLOCK_SIZE
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import UNKNOWN
from kvmesh.core.routing.decision import RouteRequest, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.embed.opening import ClosedByBlock
from kvmesh.embed.reservation import BookingOptions, Reservation
from kvmesh.errors import KvMeshError, RequestError, TransportError
from kvmesh.library.listener import MeshView
from kvmesh.observe import get_logger
from kvmesh.settings.roles import RouterSettings
from kvmesh.tasks import end_tasks, supervise

FIRST_BEATS_S: Final = 1.2
"""Heartbeats come once a second: who has listened for so long has heard of all workers."""

TOLD_S: Final = 0.02
"""By then the last bookings are sent: those of 5 ms go together."""

_LOOK_S: Final = 0.02
_NOTHING: Final = BookingOptions()


class EngineAddress(msgspec.Struct, frozen=True):
    """Where requests for one worker go: to `url`, with `headers` (they name a data-parallel rank).

    `models` are what it serves; none: any.
    """

    url: str
    headers: dict[str, str]
    models: tuple[str, ...]


class Follower(ClosedByBlock):
    """One bucket of a mesh, followed as its routers do: `KvIndexer` and `KvMetricsAggregator` read
    it, `book` makes a choice count at all routers.

    Made by `kvmesh.follow`; belongs to the event loop that made it, and is not thread-safe. Its
    calls raise `TransportError` once it was closed, or its following failed: `why_not` tells then.
    While NATS is away it goes on with what it knows. `name` is its own in the bucket.
    """

    def __init__(self, settings: RouterSettings, url: str = "") -> None:
        given = settings.cost.kv_cache_block_size
        block_size = given or DEFAULT_BLOCK_SIZE
        secret = mesh_secret(settings.cost.hash_secret_file, settings.nats.nats_url)
        self.name = settings.router_id
        self.bucket = settings.bucket
        self._url = url
        self._settings = settings
        self._root = namespace_root(secret=secret)
        self._index = KvIndex(max_blocks=index_bound(memory_limit()))
        self._scheduler = scheduler = Scheduler(
            RouterOptions(block_size=block_size),
            random.Random(),  # noqa: S311 - a choice, no secret
            membership=Membership(),
            sequences=new_sequences(block_size=block_size),
            index=self._index,
            routed=new_approx(thinned=True),
        )
        scheduler.listen(new_approx(graded=True))
        self._guard = scheduler.workers.guard = url_guard(
            settings.upstream, [], settings.nats.nats_url
        )
        self._router = Router(scheduler, given, secret_mark=secret_mark(secret))
        self._router.resized.append(scheduler.resize)
        self._mesh = RouterMesh(settings, self.name, self._router, self._index, role="follower")
        self._care = FailureCare(
            "worker",
            scheduler.workers.membership,
            self._find_probe,
            settings.failure.wait_for_worker_s,
            time.monotonic,
            scheduler.workers.settle_prices,
        )
        self._running: asyncio.Task[None] | None = None
        self._failure: KvMeshError | None = None
        self._booked = 0
        self._received_s = 0.0
        self._epoch = f"{self.name}-{time.time_ns() // 1_000_000:x}"

    async def open(self, wait_s: float) -> None:
        """Begin to follow; return when all is read, every worker had time to be heard of, and
        some may be given requests.

        Raises `TransportError` with what is missing after `wait_s` seconds.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        self._running = supervise("follow", self._follow, "end")
        while reason := self._mesh.why_not():
            if self._failure is not None:
                raise self._failure
            if loop.time() >= until_s:
                await self.close()
                raise TransportError(
                    f"following bucket {self.bucket!r} at {self._settings.nats.nats_url}: {reason}"
                    f" after {wait_s:g} s; is a router or worker of that bucket running?"
                )
            await asyncio.wait({self._running}, timeout=_LOOK_S)
        await asyncio.sleep(self._received_s + FIRST_BEATS_S - loop.time())

    async def close(self) -> None:
        """Leave the mesh; what was booked is released at the routers. Safe to call twice."""
        if self._running is None or self._running.done():
            return
        if owned := self._scheduler.sequences.owned():
            for booking in owned:
                self._mesh.outbox.ended(booking.request_id, UNKNOWN)
            await asyncio.sleep(TOLD_S)
        await end_tasks(self._running)

    @property
    def block_size(self) -> int:
        """Return how many tokens a block has: as its workers say, where none was given."""
        return self._scheduler.options.block_size

    def why_not(self) -> str:
        """Return why nothing, or nothing recent, is known; "" when all is well."""
        running = self._running
        if running is None or not running.done():
            return self._mesh.why_not()
        return "it was closed" if self._failure is None else f"it failed: {self._failure}"

    def view(self) -> MeshView:
        """Return what is known now, for `KvIndexer` and `KvMetricsAggregator`."""
        if self._running is None or self._running.done():
            raise TransportError(f"bucket {self.bucket!r} is not followed: {self.why_not()}")
        return MeshView(self._scheduler, self._index, self._root, time.monotonic())

    def engine(self, worker_id: str) -> EngineAddress:
        """Return where requests for a worker go. Raises `RequestError` for one that is gone."""
        self.view()
        beat = self._router.heartbeats.get(WorkerId(worker_id))
        if beat is None:
            raise RequestError(f"worker {worker_id!r} is not in bucket {self.bucket!r} (any more)")
        target = target_of(beat)
        headers = {name.decode(): value.decode() for name, value in target.headers}
        return EngineAddress(target.origin, headers, beat.models)

    def book(
        self, worker_id: str, token_ids: Tokens, options: BookingOptions = _NOTHING
    ) -> Reservation:
        """Book a request at a worker: from now on it counts there, here and, as soon as its message
        has come, at all routers of the bucket.

        Choose and book without an `await` between, else a burst goes to one worker. Use it as a
        context manager, or call `finish`; it is released when this process dies, too. `token_ids`
        as in `KvIndexer.find_matches_for_request`. Raises `NoWorkerError` for a worker that may not
        be given requests (it left, drains or fails), `RequestError` for a token that is no u32 or
        a request id that is booked already.
        """
        view = self.view()
        root = self._root if options.root is None else options.root
        ids = pack_tokens(token_ids) if view.scheduler.overlaps.has_lookahead() else None
        hashes = BlockHashes(token_ids, self.block_size, root, ids)
        self._booked += 1
        request_id = options.request_id or f"{self._epoch}-{self._booked}"
        if request_id in self._scheduler.sequences.bookings:
            raise RequestError(f"request {request_id!r} is booked already: finish it first")
        request = RouteRequest(
            request_id,
            hashes,
            hashes.tokens_count,
            expected_output_tokens=options.output_tokens,
            mode="direct",
            pinned_worker=WorkerId(worker_id),
            streams=options.streams,
        )
        self._scheduler.schedule(request, view.now)
        outbox = self._mesh.outbox
        outbox.placed(self._scheduler.sequences.bookings[request_id])
        return Reservation(request_id, worker_id, self._scheduler, outbox)

    def status(self) -> dict[str, object]:
        """Return how far the journal is read, the index and the peers, as a router's `/v1/status`
        does in `mesh`.
        """
        return self._mesh.describe()

    async def _follow(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            pool = upstream_pool(self._settings.upstream, self._guard)
            stack.push_async_callback(pool.close)
            stack.push_async_callback(self._mesh.stop)
            await first_of(self._join(), *self._care.running(pool, pool))

    async def _join(self) -> None:
        try:
            await self._mesh.start(self._url)
            self._received_s = asyncio.get_running_loop().time()
            await self._mesh.failed()
        except KvMeshError as error:
            self._failure = error
            get_logger().error("following ended", bucket=self.bucket, error=str(error))

    def _find_probe(self, worker: str) -> Probe | None:
        beat = self._router.heartbeats.get(WorkerId(worker))
        return Probe.of(beat.worker, beat.url, beat.health_path) if beat is not None else None
