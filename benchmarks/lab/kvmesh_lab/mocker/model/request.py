"""What a simulated engine is asked, what it answers, and what it tells of its cache."""

from collections.abc import Sequence
from typing import Protocol

import msgspec
import xxhash

from kvmesh.core.blocks.events import HASH_BYTES, ROOT
from kvmesh.core.prompts.media_tokens import Span
from kvmesh.errors import RequestError
from kvmesh_lab.mocker.model.block_pool import Handle
from kvmesh_lab.mocker.model.cache_group import CacheGroup, Tail


class PeerCache(Protocol):
    """Another engine's cache, as far as it is open to one request."""

    def held(self, hashes: Sequence[int]) -> int:
        """Return how many of `hashes`, from the first one on, it holds."""
        ...

    def bring(self, blocks: int, now: float) -> float:
        """Return when so many blocks of it will be here, in seconds."""
        ...


class RequestContent(Protocol):
    """The tokens behind a request, prompt and answer; a simulation by hashes has none."""

    def block_hash(self, index: int, parent: int) -> int:
        """Return the sequence hash of full block `index`, whose parent's hash is `parent`."""
        ...

    def block_tokens(self, first: int, count: int) -> Sequence[int]:
        """Return the token ids of `count` full blocks from block `first` on."""
        ...


class OpaqueContent:
    """Blocks without tokens: what the answer fills gets a hash of its own, the same each run.

    `seed` is 64 bits and tells requests apart whose prompts end in the same full block.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def block_hash(self, index: int, parent: int) -> int:
        """Return a hash of parent and seed."""
        del index
        return xxhash.xxh3_64_intdigest(parent.to_bytes(HASH_BYTES, "little"), self._seed)

    def block_tokens(self, first: int, count: int) -> Sequence[int]:
        """Return nothing: there are no tokens."""
        del first, count
        return ()


class Labels(msgspec.Struct, frozen=True):
    """What besides tokens went into a request's block hashes, and who asked."""

    lora_name: str | None = None
    lora_id: int | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    media: tuple[Span, ...] = ()


NO_LABELS = Labels()


class EngineRequest:
    """One sequence to generate: `output_tokens` tokens behind a prompt of `prompt_tokens`.

    `hashes` are the sequence hashes of the prompt's full blocks; more of them are those of the
    blocks the answer will fill, else `content` makes these. Scheduler state is kept in the
    attributes below it and belongs to the engine; a finished request may be read, not reused.
    """

    __slots__ = (
        "blank_blocks",
        "brought",
        "cached_tokens",
        "computed_tokens",
        "content",
        "due_step",
        "finish_step",
        "generated",
        "handles",
        "hashes",
        "kept",
        "labels",
        "offset",
        "order",
        "output_tokens",
        "peer",
        "preemptions",
        "prompt_tokens",
        "queued_at",
        "received",
        "report_cached",
        "request_id",
        "scheduled_at",
        "tails",
    )

    def __init__(
        self,
        request_id: str,
        hashes: Sequence[int],
        prompt_tokens: int,
        output_tokens: int,
        content: RequestContent | None = None,
        labels: Labels = NO_LABELS,
    ) -> None:
        self.request_id = request_id
        self.hashes = list(hashes)
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        if content is None:
            content = OpaqueContent(xxhash.xxh3_64_intdigest(request_id.encode()))
        self.content: RequestContent = content
        self.labels = labels
        self.report_cached = False
        """Tell reused blocks as if they were stored (vLLM's `kv_cache_report_mode` "full")."""
        self.received = False
        """Another engine computed the prompt, and its KV cache has come; a preemption loses it."""
        self.queued_at = 0.0
        self.scheduled_at: float | None = None
        self.cached_tokens = 0
        """Prompt tokens found in the cache when first scheduled."""
        self.preemptions = 0
        self.generated = 0
        """Tokens of the answer so far; lags while the request decodes, see `EngineModel`."""
        self.computed_tokens = 0
        self.handles: list[Handle] = []
        self.blank_blocks = 0
        self.brought = False
        """Its blocks were brought from elsewhere; it only has to be computed on."""
        self.peer: PeerCache | None = None
        """Whose cache it may be continued from."""
        self.tails: list[Tail] = []
        self.kept: tuple[int, ...] = ()
        """Lengths in blocks that a hybrid engine keeps for others, of what they may reuse."""
        self.order = 0
        self.offset = 0
        self.due_step = -1
        self.finish_step = -1

    def check_size(self, capacity_tokens: int) -> None:
        """Raise `RequestError` when so large an engine can never serve it."""
        total = self.prompt_tokens + self.output_tokens
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise RequestError(f"request {self.request_id}: prompt and answer need a token each")
        if total > capacity_tokens:
            raise RequestError(
                f"request {self.request_id}: {total} tokens of prompt and answer are more than "
                f"the KV cache holds ({capacity_tokens})"
            )

    def ensure_hashes(self, blocks: int) -> list[int]:
        """Return the hashes of at least the first `blocks` blocks, made as needed."""
        hashes = self.hashes
        while len(hashes) < blocks:
            parent = hashes[-1] if hashes else ROOT
            hashes.append(self.content.block_hash(len(hashes), parent))
        return hashes


class BlocksStored(msgspec.Struct, frozen=True):
    """The engine now holds a run of blocks; `parent` is `ROOT` for a prompt's first block.

    `first_block` is the run's place in `request`. vLLM reports a further copy of a held block too.
    `tier` 0 is the device, 1 the host's memory.
    """

    request: EngineRequest
    first_block: int
    parent: int
    hashes: list[int]
    tier: int = 0


class GroupStored(msgspec.Struct, frozen=True):
    """A group beside full attention holds, of `blocks` blocks from `first_block` on, those of
    `hashes`, which are in `places`; maybe none. `parent` is the hash before `first_block`.
    """

    request: EngineRequest
    group: CacheGroup
    first_block: int
    blocks: int
    parent: int
    places: list[int]
    hashes: list[int]


class BlocksRemoved(msgspec.Struct, frozen=True):
    """The engine evicted these blocks from `tier`, in this order; each once per copy it had.

    In a hybrid engine the hashes are keys, see `split_key`.
    """

    hashes: list[int]
    tier: int = 0


class BlocksSunk(msgspec.Struct, frozen=True):
    """These blocks are in `tier` now, and no longer in the one before it."""

    hashes: list[int]
    tier: int


class CacheCleared(msgspec.Struct, frozen=True):
    """The engine dropped its whole cache."""


EngineEvent = BlocksStored | GroupStored | BlocksRemoved | BlocksSunk | CacheCleared


class PrefillBatch:
    """The prompt tokens of one step while it is put together, `budget` more of them at most.

    Of the `received` prompts only the last token is computed, as of a request that decodes.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.tokens = 0
        self.attention = 0.0
        self.received = 0
        self.started: list[EngineRequest] = []
        self.completed: list[EngineRequest] = []

    def compute(self, before: int, count: int) -> None:
        """Add `count` tokens of a prompt, behind `before` of it that are computed or cached."""
        self.budget -= count
        self.tokens += count
        self.attention += count * (before + count / 2)


class Step(msgspec.Struct, frozen=True):
    """One step of the engine: what will be so `duration_s` after it began.

    `produced` are the requests that get one more token then; `prefilled` those of them whose first
    token (after a preemption: next token) it is, `finished` those whose last. `started` were taken
    from the queue. vLLM publishes the events at the step's end, together with its outputs.
    """

    duration_s: float
    produced: list[EngineRequest]
    prefilled: list[EngineRequest]
    finished: list[EngineRequest]
    events: list[EngineEvent]
    started: list[EngineRequest]
    preempted: list[EngineRequest]
    prefill_tokens: int


class EngineStatistics(msgspec.Struct, frozen=True):
    """The engine as it is, and totals since it began. Tokens unless named otherwise."""

    running_requests: int
    waiting_requests: int
    active_blocks: int
    usable_blocks: int
    cached_blocks: int
    steps: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    prefilled_tokens: int
    generated_tokens: int
    preemptions: int
    adapter_slots: int = 0
    running_adapters: tuple[str, ...] = ()
    waiting_adapters: tuple[str, ...] = ()

    @property
    def kv_cache_usage(self) -> float:
        """Return active / usable blocks, 0..1."""
        return self.active_blocks / self.usable_blocks
