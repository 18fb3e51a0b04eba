"""The whole decision as a library: tokens in, a worker out, its load booked until it is freed.

router = KvRouter(random.Random(7), RouterOptions(block_size=16))
router.add_worker("worker-0", now=0.0)
best = router.find_best_match("request-1", token_ids, now=0.1)   # chosen, and booked there
router.mark_prefill_completed("request-1", now=0.3)              # its first token came
router.free("request-1", now=2.0)                                # its answer ended
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from kvmesh.bounds import DEFAULT_MAX_BLOCKS, MAX_TEMPERATURE, MAX_TOKENS, MAX_WEIGHT, shown
from kvmesh.core.blocks.events import ROOT, Event, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, Tokens, pack_tokens
from kvmesh.core.cost.selection import Random
from kvmesh.core.index.approx import new_approx
from kvmesh.core.index.snapshot_reading import Snapshot
from kvmesh.core.index.snapshot_writing import Position, WorkerRecord, encode_snapshot
from kvmesh.core.insight.explain import DecisionView, view_decision
from kvmesh.core.members.block_sizes import BlockSizes
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import SERVED, Attempt
from kvmesh.core.members.worker_info import LoadReport, WorkerInfo
from kvmesh.core.routing.decision import RouteRequest, RouterMode, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler, SchedulerStatistics
from kvmesh.core.routing.sessions import SessionOptions, Sessions, session_key
from kvmesh.errors import ConfigError, RequestError
from kvmesh.library.closed_index import ClosedIndex

_SWEEP_BLOCKS: Final = 1 << 16
_NO_INFO: Final = WorkerInfo()


_MOST: Final = (MAX_TEMPERATURE, MAX_WEIGHT, MAX_TOKENS)


class RequestOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What one request asks for besides its tokens; None and empty: what the router does anyway.

    `mode`, `cost`, `temperature` (>= 0), `overlap_score_weight` (>= 0): in place of the router's.
    Another formula than the router's counts with its own default weights.
    Its worker is in `allowed_workers`, is not `excluded` (it failed there already), serves `model`,
    has all `labels` and no taint but `tolerations`; `worker_id` names the only one, which mode
    "direct" needs. `output_tokens`: how long the answer is expected to be. `streams` False: nobody
    will call `mark_prefill_completed`. `session`: keep it where that conversation's others went.
    `root`: the namespace of its blocks (`namespace_root`). Raises `RequestError` for a number
    beyond the bounds of `kvmesh/bounds.py`.
    """

    mode: RouterMode | None = None
    cost: str | None = None
    temperature: float | None = None
    overlap_score_weight: float | None = None
    model: str = ""
    worker_id: str = ""
    allowed_workers: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()
    tolerations: frozenset[str] = frozenset()
    output_tokens: int = 0
    streams: bool = True
    session: str = ""
    root: int = ROOT

    def __post_init__(self) -> None:
        """Check the numbers."""
        names = ("temperature", "overlap_score_weight", "output_tokens")
        for name, most in zip(names, _MOST, strict=True):
            value: float | None = getattr(self, name)
            if value is not None and not 0 <= value <= most:
                raise RequestError(f"{name} is {shown(value)}: use a number from 0 to {most:g}")


_NO_OPTIONS: Final = RequestOptions()


class BestMatch(msgspec.Struct, frozen=True):
    """Where a request goes. That worker holds the first `overlap_blocks` of its `total_blocks`, the
    last of which may be a partial one.
    """

    worker_id: str
    overlap_blocks: int
    total_blocks: int


class WorkerLoad(msgspec.Struct, frozen=True):
    """What one worker has been given and has not finished: requests, uncached prompt tokens that
    wait for their prefill, KV blocks in use (shared ones once).
    """

    active_requests: int
    prefill_tokens: int
    active_blocks: int


class KvRouter:
    """Chooses a worker for each prompt by what it has cached and what it has to do.

    The decision is that of `kvmesh router`, as a pure object: no NATS, no HTTP, no event loop.
    `now` is the caller's clock in seconds, from any start, never back; `rng` draws among equals
    (`random.Random(seed)`): the same calls and draws give the same decisions. Not thread-safe.
    Units are full blocks of `options.block_size` tokens; token ids are ints, or a buffer of u32s.

    `use_kv_events` False: nothing but what was sent where is known (as is of a worker whose
    `WorkerInfo.trust` is `Trust.APPROX`). Beyond `max_blocks` the index evicts (`KvIndexer`).
    A request without a sign of life for `lease_s` is released by `maintain`. Bookings of one
    conversation stay together with `sessions` of affinity "soft" or "hard".
    `workers` is what `KvMetricsAggregator` reads.

    Source: `find_best_match`, `mark_prefill_completed` and `free` are those of NVIDIA Dynamo's
    `KvRouter` (lib/llm/src/kv_router.rs); its `best_worker` without a request id is `explain`.
    """

    def __init__(
        self,
        rng: Random,
        options: RouterOptions | None = None,
        *,
        use_kv_events: bool = True,
        max_blocks: int = DEFAULT_MAX_BLOCKS,
        lease_s: float = 60.0,
        sessions: SessionOptions | None = None,
    ) -> None:
        self.options = options or RouterOptions()
        if self.options.block_size < 1:
            raise ConfigError(f"block_size is {self.options.block_size}, it must be at least 1")
        self._index = ClosedIndex(max_blocks) if use_kv_events else None
        self._sequences = new_sequences(self.options.block_size, lease_s=lease_s)
        self._membership = Membership()
        self._scheduler = Scheduler(
            self.options,
            rng,
            membership=self._membership,
            sequences=self._sequences,
            index=None if self._index is None else self._index.index,
            routed=new_approx(thinned=True),
        )
        if sessions is not None and sessions.affinity != "off":
            self._scheduler.sessions = Sessions(sessions)
        self.workers = self._scheduler.workers
        self._sizes = BlockSizes(self.options.block_size)

    def add_worker(self, worker_id: str, now: float, info: WorkerInfo = _NO_INFO) -> None:
        """Let a worker be given requests, or say anew what it serves.

        `info`: its models (none: any), KV blocks (0: unknown), labels, taints and how far its
        events are trusted. A prompt is hashed once more for each `block_size` among them.
        """
        self._membership.add(worker_id, now)
        self.workers.describe(WorkerId(worker_id), info)
        self._sizes.receive(WorkerId(worker_id), info.block_size, events=True)
        self._scheduler.look_for(self._sizes.others)

    def drain_worker(self, worker_id: str, now: float) -> None:
        """Give a worker nothing new; what it has goes on. `add_worker` takes it back.

        Raises `RequestError` for a worker that was not added.
        """
        self._membership.observe(self._known(worker_id), 0, now, draining=True)

    def remove_worker(self, worker_id: str) -> list[str]:
        """Forget a worker, its blocks and its load; return the ids of the requests it had.

        They are no longer booked: `find_best_match` may take them again. O(requests).
        """
        worker = WorkerId(worker_id)
        self._membership.remove(worker_id)
        self._sizes.forget(worker)
        self._scheduler.look_for(self._sizes.others)
        if self._index is not None:
            self._index.remove_worker(worker)
        return [booking.request_id for booking in self._scheduler.remove_worker(worker)]

    def worker_ids(self, now: float) -> list[str]:
        """Return the workers that may be given requests now, sorted: not those that drain, or are
        left out because requests fail there (`free` with an `attempt`).
        """
        return [*self.workers.everyone(now)]

    def apply_event(self, worker_id: str, event: Event) -> int:
        """Fold one KV event of a worker; return how many blocks a gap kept out, 0 if all is well.

        As `KvIndexer.apply_event`. Raises `ConfigError` with `use_kv_events` False.
        """
        return self._events().apply(WorkerId(worker_id), event)

    def report_load(self, worker_id: str, report: LoadReport) -> None:
        """Take an engine's own figures; load that nobody booked here counts when three reports in
        a row show it. Raises `RequestError` for a worker that was not added.
        """
        self.workers.report(self._known(worker_id), report)

    def find_matches_for_request(
        self, token_ids: Tokens, now: float, root: int = ROOT
    ) -> dict[str, int]:
        """Return {worker id: cached prefix in blocks} of a prompt, without workers that have none:
        what events told and what was routed lately. Raises `RequestError` for a token that is no
        u32.
        """
        hashes = self._hashes(token_ids, root)
        matches, _ = self._scheduler.overlaps.find_groups(hashes, now)
        return {worker: blocks for worker, blocks in matches.items()}  # noqa: C416 - of str, not WorkerId

    def find_best_match(
        self,
        request_id: str,
        token_ids: Tokens,
        now: float,
        options: RequestOptions = _NO_OPTIONS,
    ) -> BestMatch:
        """Choose a worker and book the request there, in one turn: the next one sees its load.

        Raises `NoWorkerError` with each worker's reason when none may take it, `RequestError` for
        an id that is booked already, a token that is no u32, an unknown cost formula or a weight
        that it lacks. About 25 us, hashing included, for 1,000 tokens cached at one of 8 workers.
        """
        if self._sequences.bookings.get(request_id) is not None:
            raise RequestError(f"request {request_id!r} is booked already: free it first")
        request = self._request(request_id, token_ids, options)
        record = self._scheduler.schedule(request, now).record
        return BestMatch(record.worker, record.overlap_blocks, record.request_blocks)

    def explain(
        self, token_ids: Tokens, now: float, options: RequestOptions = _NO_OPTIONS
    ) -> DecisionView:
        """Return the likeliest decision with every worker weighed and why others are left out.

        Changes and books nothing. O(workers), about 15 us each. Raises as `find_best_match`.
        """
        request = self._request("", token_ids, options)
        decision = self._scheduler.explain(request, now)
        left_out = self.workers.left_out(request, now)
        return view_decision(decision, router="", bucket="", left_out=left_out)

    def mark_prefill_completed(self, request_id: str, now: float) -> None:
        """Note a request's first token: its prompt waits no longer. Unknown ids change nothing."""
        self._scheduler.first_token(request_id, now)

    def add_output_tokens(self, request_id: str, output_tokens: int, now: float) -> None:
        """Note how many tokens a request's answer has in all so far; once a block is enough."""
        self._scheduler.grow(request_id, output_tokens, now)

    def free(self, request_id: str, now: float, attempt: Attempt = SERVED) -> None:
        """Release a request, however it ended; once is enough, unknown ids change nothing.

        `attempt` is what its end showed of the worker: `SERVED`, `UNKNOWN` (the client left),
        `status_attempt(500)`, `failed_attempt("reset")`. Who fails costs more, then is left out
        for a while.
        """
        self._scheduler.finish(request_id, now, attempt)

    def maintain(self, now: float) -> list[str]:
        """Do what time brings, about once a second; return the ids of requests released.

        Those had no sign of life (booked, first token, output, `renew`) for `lease_s`. Old failures
        cost less, memory of what was removed is given back, and requests that do not stream grow at
        the pace that streams show. O(requests + workers that failed).
        """
        self.workers.settle_prices(now)
        if self._index is not None:
            self._index.index.sweep(_SWEEP_BLOCKS)
        released = [booking.request_id for booking in self._sequences.expire(now)]
        self._scheduler.grow_unseen(now)
        return released

    def renew(self, request_ids: Iterable[str], now: float) -> None:
        """Take a sign of life for each request: its lease runs from `now`."""
        self._sequences.renew(request_ids, now)

    def loads(self) -> dict[str, WorkerLoad]:
        """Return {worker id: what it has been given and not finished} of every worker."""
        return {
            name: WorkerLoad(load.active_requests, load.prefill_tokens, load.active_blocks)
            for name in self._membership.members()
            for load in (self._sequences.loads(WorkerId(name)),)
        }

    def dump(self, position: Position | None = None, records: Iterable[WorkerRecord] = ()) -> bytes:
        """Return what events told of all caches, as `KvIndexer.dump` does."""
        return b"".join(
            encode_snapshot(self._events().index.freeze(), position or Position(), records)
        )

    def restore(self, data: bytes) -> Snapshot:
        """Replace what events told by what `dump` returned, as `KvIndexer.restore` does.

        Raises `CodecError`, and changes nothing, for other bytes.
        """
        return self._events().restore(data)

    def statistics(self) -> SchedulerStatistics:
        """Return counts since the start: decisions, refusals, overlap and request blocks."""
        return self._scheduler.statistics()

    def _hashes(self, token_ids: Tokens, root: int) -> BlockHashes:
        ids = pack_tokens(token_ids) if self._scheduler.overlaps.has_lookahead() else None
        return BlockHashes(token_ids, self.options.block_size, root, ids)

    def _request(self, request_id: str, token_ids: Tokens, options: RequestOptions) -> RouteRequest:
        hashes = self._hashes(token_ids, options.root)
        allowed = options.allowed_workers
        return RouteRequest(
            request_id,
            hashes,
            hashes.tokens_count,
            expected_output_tokens=options.output_tokens,
            model=options.model,
            mode=options.mode,
            cost=options.cost,
            temperature=options.temperature,
            overlap_score_weight=options.overlap_score_weight,
            allowed_workers=None if allowed is None else frozenset(map(WorkerId, allowed)),
            pinned_worker=WorkerId(options.worker_id) if options.worker_id else None,
            excluded=frozenset(map(WorkerId, options.excluded)),
            streams=options.streams,
            labels=options.labels,
            tolerations=options.tolerations,
            session=session_key(options.session) if options.session else "",
        )

    def _known(self, worker_id: str) -> WorkerId:
        if worker_id not in self._membership:
            raise RequestError(f"worker {worker_id!r} is not known: call add_worker first")
        return WorkerId(worker_id)

    def _events(self) -> ClosedIndex:
        if self._index is None:
            raise ConfigError("this router was made with use_kv_events=False: it has no index")
        return self._index
