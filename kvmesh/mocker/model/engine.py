"""An inference engine without the GPU: vLLM v1's scheduler over a `BlockPool`, in virtual time.

`step` schedules one batch and says how long it takes; the next call, not before that time, settles
it and schedules the next. Decoding requests all advance by one token a step, so a step touches
only those that fill a block, need one, or finish.
Source: vLLM `v1/core/sched/scheduler.py` (0.32), FCFS policy, chunked prefill.
"""

from collections import deque
from operator import attrgetter

from kvmesh.core.blocks.events import ROOT
from kvmesh.errors import RequestError
from kvmesh.mocker.model.block_pool import BlockPool, Handle
from kvmesh.mocker.model.options import EngineOptions
from kvmesh.mocker.model.request import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    EngineEvent,
    EngineRequest,
    EngineStatistics,
    PrefillBatch,
    Step,
)
from kvmesh.mocker.model.step_calendar import StepCalendar
from kvmesh.mocker.model.timing import StepLoad


class EngineModel:
    """The engine. `queue` and `decoding` may be read, each in scheduling order.

    While a request decodes, its `generated` lags: `produced_tokens` tells the truth.
    """

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.pool = BlockPool(options.num_gpu_blocks)
        self.capacity_tokens = self.pool.usable_blocks * options.block_size
        self.queue: deque[EngineRequest] = deque()
        self.decoding: dict[EngineRequest, None] = {}
        self._requests: dict[str, EngineRequest] = {}
        self.prefilling: EngineRequest | None = None
        self._due = StepCalendar[EngineRequest]()
        self._finishing = StepCalendar[EngineRequest]()
        self._events: list[EngineEvent] = []
        self._ending: list[EngineRequest] = []
        self._offsets = 0
        self._admissions = 0
        self._steps = 0
        self._queries = self._hits = self._prefilled = self._generated = self._preemptions = 0

    def add(self, request: EngineRequest, now: float) -> None:
        """Queue a request. Raises `RequestError` when it can never fit, or its id is in use."""
        request.check_size(self.capacity_tokens)
        if request.request_id in self._requests:
            raise RequestError(f"request id {request.request_id} is in use")
        request.queued_at = now
        self._requests[request.request_id] = request
        self.queue.append(request)

    def abort(self, request_id: str) -> bool:
        """Drop a request at once, freeing its blocks; False when it is not here (any more)."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        if request in self.decoding or request is self.prefilling:
            self._leave(request)
        else:
            self.queue.remove(request)
        return True

    def produced_tokens(self, request: EngineRequest) -> int:
        """Return how many tokens `request` will have when the step under way ends."""
        return request.offset + self._steps if request in self.decoding else request.generated

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False while any is in use. A later step has the event."""
        if done := self.pool.reset():
            self._events.append(CacheCleared())
        return done

    def step(self, now: float) -> Step | None:
        """Settle the step before, schedule the next at `now`; None when there is nothing to do."""
        for request in self._ending:
            if self._requests.pop(request.request_id, None) is not None:
                self._leave(request)
        self._ending = []
        if not self._requests:
            return None
        self._steps += 1
        preempted: list[EngineRequest] = []
        for request in sorted(self._due.take(self._steps), key=attrgetter("order")):
            if request.due_step == self._steps:
                self._advance(request, preempted)
        decoders = list(self.decoding)
        prefill = PrefillBatch(self.options.max_num_batched_tokens - len(decoders))
        if self.prefilling is not None:
            self._continue_prefill(self.prefilling, prefill, preempted)
        if not preempted:
            while prefill.budget > 0 and self.queue and self._admit(self.queue[0], prefill, now):
                self.queue.popleft()
        return self._close(decoders, prefill, preempted)

    def foresee(self, limit: int) -> list[float]:
        """Return how long the coming steps take, s, that only give each decoding request a token.

        At most `limit`; `skip` does them. A request that is added may end them. For between steps.
        """
        if self.queue or self._ending or self._events or self.prefilling or not self.decoding:
            return []
        count = min(self._due.next_step(), self._finishing.next_step()) - self._steps - 1
        load = self._load(self._steps + 1, len(self.decoding))
        return self.options.decode_s(load, int(min(count, limit)))

    def skip(self, steps: int) -> None:
        """Do so many of the steps foreseen at once."""
        self._steps += steps
        self._generated += steps * len(self.decoding)

    def statistics(self) -> EngineStatistics:
        """Return gauges and totals. O(1)."""
        return EngineStatistics(
            running_requests=len(self.decoding) + (self.prefilling is not None),
            waiting_requests=len(self.queue),
            active_blocks=self.pool.active_blocks,
            usable_blocks=self.pool.usable_blocks,
            cached_blocks=self.pool.cached_blocks,
            steps=self._steps,
            prefix_cache_queries=self._queries,
            prefix_cache_hits=self._hits,
            prefilled_tokens=self._prefilled,
            generated_tokens=self._generated,
            preemptions=self._preemptions,
        )

    def _advance(self, request: EngineRequest, preempted: list[EngineRequest]) -> None:
        """Do what this step's token of a decoding request needs: a new block, or one is full."""
        block_size = self.options.block_size
        computed = request.prompt_tokens + request.offset + self._steps - 1
        if (computed - 1) % block_size == 0 and not self._take(request, 1, preempted):
            return
        if computed % block_size == 0:
            self._store_full(request, computed)
        self._schedule_due(request, computed)

    def _schedule_due(self, request: EngineRequest, computed: int) -> None:
        """Note the step in which `_advance` is next needed, `computed` tokens being done now."""
        block_size = self.options.block_size
        past = computed % block_size
        request.due_step = self._steps + (1 if past == 0 else block_size - past)
        self._due.enter(request.due_step, request)

    def _take(self, request: EngineRequest, count: int, preempted: list[EngineRequest]) -> bool:
        """Give `request` blank blocks, preempting from the end; False when it was its own turn."""
        while self.pool.free_blocks < count:
            victim = self.prefilling or next(reversed(self.decoding))
            self._preempt(victim)
            preempted.append(victim)
            if victim is request:
                return False
        self._take_free(request, count)
        return True

    def _take_free(self, request: EngineRequest, count: int) -> None:
        if evicted := self.pool.take(count):
            self._events.append(BlocksRemoved(evicted))
        request.blank_blocks += count

    def _store_full(self, request: EngineRequest, computed: int) -> None:
        """Make the request's blocks that `computed` tokens fill reusable."""
        first, full = len(request.handles), computed // self.options.block_size
        if full <= first or not self.options.enable_prefix_caching:
            return
        hashes = request.ensure_hashes(full)
        stored = hashes[first:full]
        request.handles += self.pool.store(stored)
        request.blank_blocks -= full - first
        parent = hashes[first - 1] if first else ROOT
        self._events.append(BlocksStored(request, first, parent, stored))

    def _preempt(self, request: EngineRequest) -> None:
        """Take the request's blocks and put it first in the queue: it is recomputed later."""
        was_decoding = request is not self.prefilling
        self._leave(request)
        request.generated -= was_decoding
        request.preemptions += 1
        self._preemptions += 1
        self.queue.appendleft(request)

    def _leave(self, request: EngineRequest) -> None:
        """Take a running request out and free its blocks."""
        if request is self.prefilling:
            self.prefilling = None
        else:
            request.generated = self.produced_tokens(request)
            del self.decoding[request]
            self._offsets -= request.prompt_tokens + request.offset
            self._due.strike(request.due_step, request)
            self._finishing.strike(request.finish_step, request)
        self.pool.release(request.handles, request.blank_blocks)
        request.handles, request.blank_blocks, request.computed_tokens = [], 0, 0
        request.due_step = request.finish_step = -1

    def _admit(self, request: EngineRequest, prefill: PrefillBatch, now: float) -> bool:
        """Start the queue's first request if it fits as a whole; False stops the queue."""
        running = len(self.decoding) + len(prefill.completed)
        if running >= self.options.max_num_seqs or self.prefilling is not None:
            return False
        block_size, pool = self.options.block_size, self.pool
        total = request.prompt_tokens + request.generated
        hits: list[Handle] = []
        if self.options.enable_prefix_caching:
            hits = pool.find_cached(
                request.ensure_hashes(total // block_size), (total - 1) // block_size
            )
        if -(-total // block_size) - len(hits) + pool.count_free(hits) > pool.free_blocks:
            return False
        if hits and request.report_cached:
            self._events.append(BlocksStored(request, 0, ROOT, request.hashes[: len(hits)]))
        pool.hold(hits)
        request.handles = hits
        request.computed_tokens = cached = len(hits) * block_size
        if not request.preemptions:
            request.scheduled_at, request.cached_tokens = now, cached
            self._queries += total
            self._hits += cached
        self._admissions += 1
        request.order = self._admissions
        prefill.started.append(request)
        self._prefill_chunk(request, prefill, total)
        return True

    def _continue_prefill(
        self, request: EngineRequest, prefill: PrefillBatch, preempted: list[EngineRequest]
    ) -> None:
        total = request.prompt_tokens + request.generated
        count = min(total - request.computed_tokens, prefill.budget)
        needed = self._blocks_missing(request, request.computed_tokens + count)
        if count and self._take(request, needed, preempted):
            self.prefilling = None
            self._prefill_chunk(request, prefill, total)

    def _blocks_missing(self, request: EngineRequest, tokens: int) -> int:
        return -(-tokens // self.options.block_size) - len(request.handles) - request.blank_blocks

    def _prefill_chunk(self, request: EngineRequest, prefill: PrefillBatch, total: int) -> None:
        """Compute as much of the prompt as the step's budget allows."""
        before = request.computed_tokens
        count = min(total - before, prefill.budget)
        request.computed_tokens = before + count
        missing = self._blocks_missing(request, before + count)
        if missing:
            self._take_free(request, missing)
        self._store_full(request, before + count)
        prefill.compute(before, count)
        if before + count == total:
            prefill.completed.append(request)
        else:
            self.prefilling = request

    def _load(self, step: int, decoding: int, tokens: int = 0, attention: float = 0.0) -> StepLoad:
        return StepLoad(
            prefill_tokens=tokens,
            prefill_attention=attention,
            decoding=decoding,
            context_tokens=self._offsets + (step - 1) * decoding,
            active_tokens=self.pool.active_blocks * self.options.block_size,
        )

    def _close(
        self, decoders: list[EngineRequest], prefill: PrefillBatch, preempted: list[EngineRequest]
    ) -> Step:
        """Return the scheduled step, and let completed prefills decode from the next one on."""
        load = self._load(self._steps, len(decoders), prefill.tokens, prefill.attention)
        for request in prefill.completed:
            request.offset = request.generated + 1 - self._steps
            self.decoding[request] = None
            self._offsets += request.prompt_tokens + request.offset
            self._schedule_due(request, request.computed_tokens)
            request.finish_step = request.output_tokens - request.offset
            self._finishing.enter(request.finish_step, request)
        finished = self._finishing.take(self._steps)
        for request in finished:
            request.generated, request.finish_step = request.output_tokens, -1
        self._ending = finished
        produced = decoders + prefill.completed
        self._prefilled += prefill.tokens
        self._generated += len(produced)
        events, self._events = self._events, []
        return Step(
            duration_s=self.options.step_s(load),
            produced=produced,
            prefilled=prefill.completed,
            finished=finished,
            events=events,
            started=prefill.started,
            preempted=preempted,
            prefill_tokens=prefill.tokens,
        )
