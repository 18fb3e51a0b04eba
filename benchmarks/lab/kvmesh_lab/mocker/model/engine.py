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
from kvmesh_lab.mocker.model.adapter_pool import AdapterPool
from kvmesh_lab.mocker.model.block_pool import BlockPool, Handle
from kvmesh_lab.mocker.model.groups import CacheGroups
from kvmesh_lab.mocker.model.lower_tiers import LowerMemory
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.request import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    EngineEvent,
    EngineRequest,
    EngineStatistics,
    PrefillBatch,
    Step,
)
from kvmesh_lab.mocker.model.step_calendar import StepCalendar
from kvmesh_lab.mocker.model.timing import StepLoad


class EngineModel:
    """The engine. `queue` and `decoding` may be read, each in scheduling order.

    While a request decodes, its `generated` lags: `produced_tokens` tells the truth.
    """

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.pool = BlockPool(options.num_gpu_blocks)
        self.groups = CacheGroups(options, self.pool) if options.groups else None
        blocks = self.groups.capacity() if self.groups else self.pool.usable_blocks
        self.capacity_tokens = blocks * options.block_size
        self.queue: deque[EngineRequest] = deque()
        self.decoding: dict[EngineRequest, None] = {}
        self.lower = LowerMemory(options.tiers)
        load_s = options.lora_load_ms / 1000.0 / options.speedup_ratio
        self.adapters = AdapterPool(options.max_loras, load_s)
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
            if not self.lower.drop(request):
                self.queue.remove(request)
            self._free(request)
        return True

    def produced_tokens(self, request: EngineRequest) -> int:
        """Return how many tokens `request` will have when the step under way ends."""
        return request.offset + self._steps if request in self.decoding else request.generated

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False while any is in use. A later step has the event."""
        if done := self.pool.reset():
            self.lower.tiers.clear()
            self._events.append(CacheCleared())
        return done

    def step(self, now: float) -> Step | None:
        """Settle the step before, schedule the next at `now`; None when there is nothing to do, or
        nothing before `lower.arrives_s`.
        """
        for request in self._ending:
            if self._requests.pop(request.request_id, None) is not None:
                self._leave(request)
        self._ending = []
        if not self._settle(now):
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
        if self.lower and not (decoders or prefill.tokens or preempted):
            return None
        return self._close(decoders, prefill, preempted)

    def _settle(self, now: float) -> bool:
        """Take in the requests whose blocks were brought; return whether any has work left."""
        arrived = self.lower.arrived(now)
        for request in arrived:
            if request.computed_tokens:
                self._store_full(request, request.computed_tokens)
                request.brought = True
        self.queue.extendleft(reversed(arrived))
        return bool(self.queue or self.decoding or self.prefilling)

    def foresee(self, limit: int) -> list[float]:
        """Return how long the coming steps take, s, that only give each decoding request a token.

        At most `limit`; `skip` does them. A request that is added may end them. For between steps.
        """
        if self.queue or self._ending or self._events or self.prefilling or not self.decoding:
            return []
        if self.lower:
            return []
        count = min(self._due.next_step(), self._finishing.next_step()) - self._steps - 1
        load = self._load(self._steps + 1, len(self.decoding))
        return self.options.decode_s(load, int(min(count, limit)))

    def skip(self, steps: int) -> None:
        """Do so many of the steps foreseen at once."""
        self._steps += steps
        self._generated += steps * len(self.decoding)

    def statistics(self) -> EngineStatistics:
        """Return gauges and totals. O(1), with adapters' slots O(requests that wait)."""
        return EngineStatistics(
            running_requests=len(self.decoding) + (self.prefilling is not None),
            waiting_requests=len(self.queue) + len(self.lower),
            active_blocks=self.pool.active_blocks,
            usable_blocks=self.pool.usable_blocks,
            cached_blocks=self.pool.cached_blocks,
            steps=self._steps,
            prefix_cache_queries=self._queries,
            prefix_cache_hits=self._hits,
            prefilled_tokens=self._prefilled,
            generated_tokens=self._generated,
            preemptions=self._preemptions,
            adapter_slots=self.adapters.slots,
            running_adapters=tuple(self.adapters.running),
            waiting_adapters=self._waiting_adapters() if self.adapters.slots else (),
        )

    def _waiting_adapters(self) -> tuple[str, ...]:
        names = (request.labels.lora_name for request in self.queue)
        return tuple(dict.fromkeys(name for name in names if name is not None))

    def _advance(self, request: EngineRequest, preempted: list[EngineRequest]) -> None:
        """Do what this step's token of a decoding request needs: a new block, or one is full."""
        block_size = self.options.block_size
        computed = request.prompt_tokens + request.offset + self._steps - 1
        request.computed_tokens = computed - 1
        needed = request.computed_tokens % block_size == 0
        if needed and not self._take(request, 1, computed, preempted):
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

    def _take(
        self, request: EngineRequest, count: int, tokens: int, preempted: list[EngineRequest]
    ) -> bool:
        """Give `request` blank blocks, preempting from the end; False when it was its own turn."""
        more = self.groups.make_room(request, tokens) if self.groups else 0
        while self.pool.free_blocks < count + more:
            victim = self.prefilling or next(reversed(self.decoding))
            self._preempt(victim)
            preempted.append(victim)
            if victim is request:
                return False
        self._take_free(request, count, tokens)
        return True

    def _take_free(self, request: EngineRequest, count: int, tokens: int) -> None:
        request.blank_blocks += count
        if self.groups:
            count += self.groups.grow(request, tokens)
        if evicted := self.pool.take(count):
            self._events.append(BlocksRemoved(evicted))

    def _store_full(self, request: EngineRequest, computed: int) -> None:
        """Make the request's blocks that `computed` tokens fill reusable."""
        first, full = len(request.handles), computed // self.options.block_size
        if full <= first or not self.options.enable_prefix_caching:
            return
        hashes = request.ensure_hashes(full)
        stored = hashes[first:full]
        parent = hashes[first - 1] if first else ROOT
        if self.groups:
            self._events += self.groups.store(request, full)
        request.handles += self.pool.store(stored)
        request.blank_blocks -= full - first
        self._events.append(BlocksStored(request, first, parent, stored))
        self._events += self.lower.copy(request, first, full)

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
        self.adapters.leave(request.labels.lora_name)
        self._free(request)

    def _free(self, request: EngineRequest) -> None:
        """Free a request's blocks."""
        if self.groups:
            self.groups.end(request)
        self.pool.release(request.handles, request.blank_blocks)
        request.handles, request.blank_blocks, request.computed_tokens = [], 0, 0
        request.due_step = request.finish_step = -1
        request.brought = False

    def _admit(self, request: EngineRequest, prefill: PrefillBatch, now: float) -> bool:
        """Start the queue's first request if it fits as a whole; False stops the queue."""
        running = len(self.decoding) + len(prefill.completed)
        full = running >= self.options.max_num_seqs or self.prefilling is not None
        if full or not self.adapters.has_room(request.labels.lora_name):
            return False
        block_size, pool = self.options.block_size, self.pool
        total = request.prompt_tokens + request.generated
        if request.brought:
            return self._begin(request, prefill, now)
        hits: list[Handle] = []
        if self.options.enable_prefix_caching:
            hits = pool.find_cached(
                request.ensure_hashes(total // block_size), (total - 1) // block_size
            )
        if self.lower.wait(request, request.hashes[len(hits) : (total - 1) // block_size]):
            return True
        more = self.groups.cut(request, hits, total) if self.groups else 0
        blocks = -(-total // block_size) - len(hits) + more
        if blocks + pool.count_free(hits) > pool.free_blocks:
            return False
        if hits and request.report_cached:
            self._events.append(BlocksStored(request, 0, ROOT, request.hashes[: len(hits)]))
        pool.hold(hits)
        if self.groups:
            self.groups.begin(request, len(hits))
        request.handles = hits
        request.computed_tokens = len(hits) * block_size
        brings = self.options.enable_prefix_caching and self._bring(request, total, now)
        return brings or self._begin(request, prefill, now)

    def _bring(self, request: EngineRequest, total: int, now: float) -> bool:
        """Have blocks brought that are not on the device; False if there are none.

        All that the request needs is taken for it at once: it never waits for who waits for it.
        """
        held, limit = len(request.handles), (total - 1) // self.options.block_size
        blocks = self.lower.bring(request, request.hashes[held:limit], now)
        if blocks:
            self._take_free(request, self._blocks_missing(request, total), total)
            request.computed_tokens = (held + blocks) * self.options.block_size
        return blocks > 0

    def _begin(self, request: EngineRequest, prefill: PrefillBatch, now: float) -> bool:
        """Start a request with what is cached of it."""
        total, cached = request.prompt_tokens + request.generated, request.computed_tokens
        request.brought = False
        self.adapters.enter(request.labels.lora_name)
        if not request.preemptions:
            request.scheduled_at, request.cached_tokens = now, cached
            self._queries += total
            self._hits += cached
        self._admissions += 1
        request.order = self._admissions
        prefill.started.append(request)
        if request.received and not request.preemptions:
            self._receive(request, prefill, total)
        else:
            self._prefill_chunk(request, prefill, total)
        return True

    def _receive(self, request: EngineRequest, prefill: PrefillBatch, total: int) -> None:
        """Take in what another engine computed of the prompt: all but the last token's result."""
        request.computed_tokens = total
        self._take_free(request, self._blocks_missing(request, total), total)
        self._store_full(request, total)
        prefill.budget -= 1
        prefill.received += 1
        prefill.completed.append(request)

    def _continue_prefill(
        self, request: EngineRequest, prefill: PrefillBatch, preempted: list[EngineRequest]
    ) -> None:
        total = request.prompt_tokens + request.generated
        count = min(total - request.computed_tokens, prefill.budget)
        tokens = request.computed_tokens + count
        needed = self._blocks_missing(request, tokens)
        if count and self._take(request, needed, tokens, preempted):
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
            self._take_free(request, missing, before + count)
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
        decoding = len(decoders) + prefill.received
        load = self._load(self._steps, decoding, prefill.tokens, prefill.attention)
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
            duration_s=self.options.step_s(load) + self.adapters.take_loading_s(),
            produced=produced,
            prefilled=prefill.completed,
            finished=finished,
            events=events,
            started=prefill.started,
            preempted=preempted,
            prefill_tokens=prefill.tokens,
        )
