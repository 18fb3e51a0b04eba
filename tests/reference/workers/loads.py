"""The naive model of `Booking` and `Loads` in kvmesh/native/loads/bookings.c and loads.c."""

from collections.abc import Mapping, Sequence

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import key_count, key_depth
from kvmesh.core.blocks.hashing import Hashes


class Booking(msgspec.Struct, eq=False):
    """One request at one worker. Times are the caller's clock, seconds.

    `renewed_s` is its last sign of life, `output_s` when output last came, or
    began to come unseen. `service_s` is how long
    the prefill of `service_tokens` took, its own and of those whose end was inferred from it,
    counted from when the worker could have begun; meaningful after its first token. `prefilling`
    stays True for a request that ended without one. `hashes` are dropped with its first token: the
    prompt is cached by then, and events tell of it. `foreseen_blocks` of `private_blocks` are
    output that nobody saw but that must have come by now; seen answers have none.
    """

    request_id: str
    worker: WorkerId
    owner: str
    prompt_tokens: int
    uncached_tokens: int
    service_tokens: int
    booked_s: float
    renewed_s: float
    output_s: float
    streams: bool = True
    keys: tuple[int, ...] = ()
    hashes: Hashes | bytes | None = None
    private_blocks: int = 0
    expected_blocks: int = 0
    foreseen_blocks: int = 0
    output_tokens: int = 0
    prefilling: bool = True
    service_s: float = 0.0
    turn: bool = False


class Loads:
    """The live sums of one worker. Read freely; only `ActiveSequences` writes.

    `prefill_tokens`: uncached prompt tokens whose prefill is not known to be done, of the
    requests in `prefilling`, oldest first; `silent` of those will show no first token.
    `prompt_tokens`: all prompt tokens outstanding. `active_blocks`: KV blocks in use, shared ones
    once; `expected_blocks`: those the expected outputs will still take. `active_requests`,
    `active_blocks`, `prompt_tokens` and `prefill_tokens` include what only the engine's reports
    show: `unseen_requests`, `unseen_blocks`, `unseen_tokens`.
    `progress_s`: when the prefill backlog last moved, or began.
    """

    __slots__ = (
        "_key_blocks",
        "active_blocks",
        "active_requests",
        "expected_blocks",
        "prefill_tokens",
        "prefilling",
        "progress_s",
        "prompt_tokens",
        "shared",
        "silent",
        "unseen_blocks",
        "unseen_requests",
        "unseen_tokens",
        "worker",
    )

    def __init__(self, worker: WorkerId) -> None:
        self.worker = worker
        self.prefill_tokens = 0
        self.prompt_tokens = 0
        self.active_requests = 0
        self.active_blocks = 0
        self.expected_blocks = 0
        self.progress_s = 0.0
        self.silent = 0
        self.unseen_requests = 0
        self.unseen_blocks = 0
        self.unseen_tokens = 0
        self.prefilling: dict[str, Booking] = {}
        self.shared: dict[int, int] = {}
        self._key_blocks: dict[int, int] = {}

    def begin(self, booking: Booking, now: float) -> None:
        """Take a booking in, the last of those that wait for their prefill."""
        if not self.prefilling:
            self.progress_s = now
        self.prefilling[booking.request_id] = booking
        self.prefill_tokens += booking.uncached_tokens
        self.silent += not booking.streams
        self.prompt_tokens += booking.prompt_tokens
        self.active_requests += 1
        self.expected_blocks += booking.expected_blocks
        self.active_blocks += booking.private_blocks + self.hold(booking.keys)

    def end_prefill(self, booking: Booking) -> None:
        """Take a booking that is in `prefilling` out of the backlog."""
        del self.prefilling[booking.request_id]
        self.prefill_tokens -= booking.uncached_tokens
        self.silent -= not booking.streams

    def grow(self, blocks: int, expected_blocks: int) -> None:
        """Take more blocks, some of them expected."""
        self.active_blocks += blocks
        self.expected_blocks -= expected_blocks

    def end(self, booking: Booking) -> None:
        """Let a booking go whose prefill has ended."""
        self.prompt_tokens -= booking.prompt_tokens
        self.active_requests -= 1
        self.expected_blocks -= booking.expected_blocks
        self.active_blocks -= booking.private_blocks + self.release(booking.keys)

    def correct(self, requests: int, blocks: int, prefill_tokens: int, block_size: int) -> None:
        """Count load that nobody booked in place of what was counted before."""
        self.active_requests += requests - self.unseen_requests
        self.active_blocks += blocks - self.unseen_blocks
        self.prompt_tokens += (blocks - self.unseen_blocks) * block_size
        self.prefill_tokens += prefill_tokens - self.unseen_tokens
        self.unseen_requests = requests
        self.unseen_blocks = blocks
        self.unseen_tokens = prefill_tokens

    @property
    def waiting_requests(self) -> int:
        """Return how many wait for their prefill."""
        return len(self.prefilling)

    @property
    def booked_requests(self) -> int:
        """Return the requests that routers booked."""
        return self.active_requests - self.unseen_requests

    @property
    def booked_blocks(self) -> int:
        """Return the blocks of the requests that routers booked."""
        return self.active_blocks - self.unseen_blocks

    @property
    def booked_tokens(self) -> int:
        """Return the uncached prompt tokens of the requests that routers booked."""
        return self.prefill_tokens - self.unseen_tokens

    def wait_ms(self, ms_per_token: float, now: float, step_tokens: float = 0.0) -> float:
        """Return when the backlog will be prefilled, ms from now: a clock run on `ms_per_token`.

        A step's fixed time counts as `step_tokens`. Time since the last progress is credited up to
        the oldest request's own prefill: were more done, its first token would have come.
        """
        if not self.prefill_tokens:
            return 0.0
        whole_ms = ms_per_token * (self.prefill_tokens + step_tokens)
        elapsed_ms = (now - self.progress_s) * 1000.0
        if elapsed_ms <= 0.0 or not self.prefilling:
            return whole_ms
        oldest = next(iter(self.prefilling.values()))
        own_ms = ms_per_token * (oldest.uncached_tokens + step_tokens)
        return whole_ms - (elapsed_ms if elapsed_ms < own_ms else own_ms)  # noqa: FURB136  # 60 ns sooner

    def hold(self, keys: Sequence[int]) -> int:
        """Take a reference on each key; return the blocks of those that had none before."""
        new = 0
        for number, key in enumerate(keys, 1):
            blocks = key_depth(number) - key_depth(number - 1)
            count = self.shared.get(key, 0)
            self.shared[key] = count + 1
            if not count:
                # Kept: who gives the last reference back may know the key by another number.
                self._key_blocks[key] = blocks
                new += blocks
        return new

    def release(self, keys: Sequence[int]) -> int:
        """Give a reference of each key back; return the blocks of those that have none left."""
        freed = 0
        for key in keys:
            count = self.shared[key] - 1
            if count:
                self.shared[key] = count
            else:
                del self.shared[key]
                freed += self._key_blocks.pop(key)
        return freed


def shared_blocks(shared: Mapping[int, int], keys: Sequence[int], overlap: int) -> int:
    """Return how many of the first `overlap` blocks a worker's active requests already hold, as the
    sharing keys that are `Loads.shared` there tell.

    Active requests hold whole prefixes, so presence is monotonic in depth: O(log keys).
    """
    high = min(len(keys), key_count(overlap))
    if not shared or not high or keys[0] not in shared:
        return 0
    low = 1
    while low < high:
        middle = (low + high + 1) >> 1
        if keys[middle - 1] in shared:
            low = middle
        else:
            high = middle - 1
    return key_depth(low)
