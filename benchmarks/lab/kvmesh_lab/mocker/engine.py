"""One rank of the pretend vLLM under the clock: its engine, its timer, its event stream."""

import asyncio
import time
from collections.abc import Callable

import msgspec

from kvmesh.actors.kernel import Message, Send, Wake
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.tasks import guarded
from kvmesh_lab.mocker.actor import (
    CancelGeneration,
    EngineStepped,
    Generate,
    GenerationRefused,
    SimulatedEngine,
)
from kvmesh_lab.mocker.model.cache_group import split_key
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.request import EngineRequest, EngineStatistics, Step
from kvmesh_lab.mocker.publisher import EventPublisher
from kvmesh_lab.mocker.vllm_events import encode_events

MAX_LAG_S = 0.05
"""Later than this, lost time is not made up for by shorter steps."""

StepListener = Callable[[int, Step, float], None]
"""Called as each step ends with rank, step and its duration in seconds."""


class EngineRunner:
    """Drives a `SimulatedEngine` in real time; publishes its events as each step ends.

    A step begins when the one before was due, not when its timer fired, so that timers' lateness
    does not slow the engine down.
    """

    def __init__(
        self,
        rank: int,
        options: EngineOptions,
        publisher: EventPublisher | None,
        on_step: StepListener,
    ) -> None:
        self.rank = rank
        self.publisher = publisher
        self._engine = SimulatedEngine(f"rank-{rank}", options, "server")
        self._options = options
        self._on_step = on_step
        self._refusals: list[str] = []
        self._due = 0.0
        self._generated = 0
        self._slowdown = 1.0
        self._pause_s = 0.0
        self._last: EngineStatistics | None = None
        self._held: Message | None = None
        self._timer: asyncio.TimerHandle | None = None
        # An engine that takes no further step would leave its requests open for ever.
        self._step = guarded("engine step", self._wake, "end")

    @property
    def capacity_tokens(self) -> int:
        """Return how many tokens the KV cache holds."""
        return self._engine.model.capacity_tokens

    @property
    def load(self) -> int:
        """Return vLLM's measure for choosing a rank: waiting requests count four times."""
        statistics = self.statistics()
        return 4 * statistics.waiting_requests + statistics.running_requests

    def submit(self, request: EngineRequest) -> str | None:
        """Queue a request; return why not when it can never be served."""
        self._deliver(Generate(request), asyncio.get_running_loop().time())
        return self._refusals.pop() if self._refusals else None

    def cancel(self, request_id: str) -> None:
        """Drop a request at once; its blocks are free when this returns."""
        self._deliver(CancelGeneration(request_id), asyncio.get_running_loop().time())

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False while requests hold some."""
        return self._engine.model.reset_prefix_cache()

    def statistics(self) -> EngineStatistics:
        """Return the gauges and totals: tokens count once the step that makes them has ended, and
        those of a stalled engine, which tells none, are its last.
        """
        if self._last is not None:
            return self._last
        statistics = self._engine.model.statistics()
        return msgspec.structs.replace(statistics, generated_tokens=self._generated)

    def set_pace(self, slowdown: float, pause_s: float, *, stalled: bool) -> None:
        """Have steps take `slowdown` times as long from now on, and the next one `pause_s` more; a
        `stalled` engine takes none, and goes on where it stood.
        """
        self._slowdown, self._pause_s = slowdown, pause_s
        self._last = self.statistics() if stalled else None
        held = self._held
        if held is not None and not stalled:
            self._held = None
            self._deliver(held, asyncio.get_running_loop().time())

    def dump(self) -> bytes:
        """Return the content hashes of all blocks cached for full attention, each once, as packed
        u64s.
        """
        keys = map(split_key, self._engine.model.pool.hashes())
        return pack_hashes(sorted({one for group, one in keys if not group}))

    def close(self) -> None:
        """Stop the timer and the event stream; safe to call twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.publisher is not None:
            self.publisher.close()

    def _deliver(self, message: Message, now: float) -> None:
        for effect in self._engine.receive(message, now):
            match effect:
                case Wake():
                    self._schedule(effect, now)
                case Send(message=EngineStepped() as stepped):
                    self._end_step(stepped.step)
                case Send(message=GenerationRefused() as refused):
                    self._refusals.append(refused.reason)
                case _:
                    raise AssertionError(effect)

    def _schedule(self, wake: Wake, now: float) -> None:
        loop = asyncio.get_running_loop()
        lasts_s = wake.after_s * self._slowdown
        if lasts_s:
            lasts_s, self._pause_s = lasts_s + self._pause_s, 0.0
        self._due = now + lasts_s
        self._timer = loop.call_at(self._due, self._step, wake.message)

    def _wake(self, message: Message) -> None:
        if self._last is not None:
            self._held = message
            return
        now = asyncio.get_running_loop().time()
        self._deliver(message, self._due if now - self._due < MAX_LAG_S else now)

    def _end_step(self, step: Step) -> None:
        self._generated += len(step.produced)
        if step.events and self.publisher is not None:
            size, groups = self._options.block_size, len(self._options.groups)
            payload = encode_events(step.events, time.time(), self.rank, size, groups)
            self.publisher.publish(payload)
        self._on_step(self.rank, step, step.duration_s)
