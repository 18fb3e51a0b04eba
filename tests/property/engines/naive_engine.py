"""The engine written the slow way: block objects, one list as free queue, one loop over requests.

Close to the text of vLLM's scheduler and block pool, to hold the fast one against.
"""

from collections.abc import Sequence

from kvmesh_lab.mocker.model.timing import StepLoad, TimingProfile


class Block:
    def __init__(self) -> None:
        self.references = 0
        self.hash: int | None = None


class NaivePool:
    def __init__(self, num_blocks: int) -> None:
        self.free = [Block() for _ in range(num_blocks - 1)]
        self.cached: dict[int, list[Block]] = {}

    def find(self, hashes: Sequence[int], limit: int) -> list[Block]:
        found: list[Block] = []
        for value in hashes[:limit]:
            if value not in self.cached:
                break
            found.append(self.cached[value][0])
        return found

    def touch(self, blocks: list[Block]) -> None:
        for block in blocks:
            if block.references == 0:
                self.free.remove(block)
            block.references += 1

    def take(self, count: int) -> tuple[list[Block], list[int]]:
        taken, self.free = self.free[:count], self.free[count:]
        evicted: list[int] = []
        for block in taken:
            block.references = 1
            if block.hash is not None:
                evicted.append(block.hash)
                self.cached[block.hash].remove(block)
                if not self.cached[block.hash]:
                    del self.cached[block.hash]
                block.hash = None
        return taken, evicted

    def store(self, blocks: list[Block], hashes: Sequence[int]) -> None:
        for block, value in zip(blocks, hashes, strict=True):
            block.hash = value
            self.cached.setdefault(value, []).append(block)

    def release(self, blocks: list[Block]) -> None:
        blank: list[Block] = []
        used: list[Block] = []
        for block in reversed(blocks):
            block.references -= 1
            if block.references == 0:
                (blank if block.hash is None else used).append(block)
        self.free = blank + self.free + used

    def hashes(self) -> list[int]:
        return sorted(value for value, blocks in self.cached.items() for _ in blocks)

    def reset(self, usable: int) -> bool:
        if len(self.free) != usable:
            return False
        for block in self.free:
            block.hash = None
        self.cached.clear()
        return True


class NaiveRequest:
    def __init__(self, name: str, hashes: list[int], prompt: int, output: int) -> None:
        self.name, self.hashes, self.prompt, self.output = name, hashes, prompt, output
        self.generated = self.computed = self.full = 0
        self.blocks: list[Block] = []
        self.is_decoding = False
        self.cached: int | None = None


Stored = tuple[str, int, tuple[int, ...]]


class NaiveEngine:
    def __init__(
        self,
        sizes: tuple[int, int, int, int],
        timing: TimingProfile,
    ) -> None:
        self.block_size, blocks, self.max_seqs, self.budget = sizes
        self.usable = blocks - 1
        self.timing = timing
        self.pool = NaivePool(blocks)
        self.waiting: list[NaiveRequest] = []
        self.running: list[NaiveRequest] = []
        self.done: list[NaiveRequest] = []
        self.events: list[tuple[str, tuple[int, ...]]] = []

    def take(self, request: NaiveRequest, tokens: int) -> bool:
        need = -(-tokens // self.block_size) - len(request.blocks)
        if need > len(self.pool.free):
            return False
        blocks, evicted = self.pool.take(max(0, need))
        request.blocks += blocks
        if evicted:
            self.events.append(("removed", tuple(evicted)))
        return True

    def compute(self, request: NaiveRequest, tokens: int) -> None:
        request.computed += tokens
        full = request.computed // self.block_size
        if full > request.full:
            hashes = request.hashes[request.full : full]
            self.pool.store(request.blocks[request.full : full], hashes)
            self.events.append(("stored", tuple(hashes)))
            request.full = full
        self.left -= tokens
        self.scheduled.append(request)

    def step(self) -> tuple[float, list[str], list[str], list[tuple[str, tuple[int, ...]]]] | None:
        for request in self.done:
            if request in self.running:
                self.running.remove(request)
                self.pool.release(request.blocks)
        self.done = []
        if not self.waiting and not self.running:
            return None
        self.left, self.prefill, self.attention = self.budget, 0, 0.0
        self.context = self.decoding = 0
        self.scheduled: list[NaiveRequest] = []
        if not self.schedule_running():
            self.schedule_waiting()
        active = (self.usable - len(self.pool.free)) * self.block_size
        load = StepLoad(self.prefill, self.attention, self.decoding, self.context, active)
        produced: list[str] = []
        for request in self.scheduled:
            if request.computed == request.prompt + request.generated:
                request.generated += 1
                request.is_decoding = True
                produced.append(request.name)
                if request.generated == request.output:
                    self.done.append(request)
        events, self.events = self.events, []
        return self.timing.step_ms(load), produced, sorted(r.name for r in self.done), events

    def schedule_running(self) -> bool:
        """Return whether any request was preempted."""
        preempted = False
        index = 0
        while index < len(self.running) and self.left > 0:
            request = self.running[index]
            total = request.prompt + request.generated
            count = min(total - request.computed, self.left)
            while not self.take(request, request.computed + count):
                victim = self.running.pop()
                self.preempt(victim)
                preempted = True
                if victim is request:
                    return True
            if request.is_decoding:
                self.decoding += 1
                self.context += total
            else:
                self.count_prefill(request, count)
            self.compute(request, count)
            index += 1
        return preempted

    def schedule_waiting(self) -> None:
        while self.left > 0 and self.waiting and len(self.running) < self.max_seqs:
            request = self.waiting[0]
            total = request.prompt + request.generated
            hits = self.pool.find(request.hashes, (total - 1) // self.block_size)
            free_hits = sum(block.references == 0 for block in hits)
            if -(-total // self.block_size) - len(hits) + free_hits > len(self.pool.free):
                break
            self.waiting.pop(0)
            self.pool.touch(hits)
            request.blocks = list(hits)
            request.full = len(hits)
            request.computed = len(hits) * self.block_size
            if request.cached is None:
                request.cached = request.computed
            count = min(total - request.computed, self.left)
            assert self.take(request, request.computed + count)
            self.count_prefill(request, count)
            self.compute(request, count)
            self.running.append(request)

    def count_prefill(self, request: NaiveRequest, count: int) -> None:
        self.prefill += count
        self.attention += count * (request.computed + count / 2)

    def preempt(self, request: NaiveRequest) -> None:
        self.pool.release(request.blocks)
        request.blocks, request.computed, request.full = [], 0, 0
        request.is_decoding = False
        self.waiting.insert(0, request)

    def abort(self, name: str) -> None:
        for request in list(self.waiting):
            if request.name == name:
                self.waiting.remove(request)
        for request in list(self.running):
            if request.name == name:
                self.running.remove(request)
                self.pool.release(request.blocks)
