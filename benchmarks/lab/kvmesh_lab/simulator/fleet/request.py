"""A trace's requests as a simulated fleet takes them: hashes instead of tokens."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec
import xxhash

from kvmesh.core.blocks.events import HASH_BYTES, WorkerId
from kvmesh.core.blocks.hashing import namespace_root
from kvmesh.core.programs.touch import Touch
from kvmesh.errors import ConfigError, UnattainableError
from kvmesh_lab.mocker.model.faults import Fault
from kvmesh_lab.mocker.model.request import NO_LABELS, EngineRequest, Labels
from kvmesh_lab.report.outcome import UNKNOWN
from kvmesh_lab.traces.trace import TraceRequest, split_sessions

WARM: Final = Touch("", WorkerId(""), 0)


class FleetRequest(msgspec.Struct, frozen=True):
    """One request with the sequence hashes of its prompt's full engine blocks.

    `following` are the places in the list of requests of those that wait for this one's end: the
    next turn, and the first ones of sub-agents. `is_first` tells that nothing has to end before
    this one, `is_last` that no turn of its session follows. Times are seconds.
    """

    trace: TraceRequest
    hashes: list[int]
    is_first: bool
    following: tuple[int, ...] = ()
    is_last: bool = False


def make_requests(
    requests: Sequence[TraceRequest], trace_block_size: int, block_size: int
) -> tuple[FleetRequest, ...]:
    """Return the requests with hashes for engines of `block_size`, which divides the trace's.

    Equal ids in equal places behind equal ids give equal hashes; what no id covers is unique.
    Raises `ConfigError`. O(engine blocks).
    """
    if block_size < 1 or trace_block_size % block_size:
        raise ConfigError(
            f"engine blocks of {block_size} tokens do not divide the trace's blocks of "
            f"{trace_block_size}; choose a divisor"
        )
    places = {request.index: place for place, request in enumerate(requests)}
    following: dict[int, list[int]] = {}
    last: set[int] = set()
    for chain in split_sessions(requests):
        last.add(chain[-1].index)
        for turn, later in pairwise(chain):
            following.setdefault(turn.index, []).append(places[later.index])
        if chain[0].after in places:
            following.setdefault(chain[0].after, []).append(places[chain[0].index])
    waiting = {place for ones in following.values() for place in ones}
    return tuple(
        FleetRequest(
            trace=request,
            hashes=prompt_hashes(request, trace_block_size, block_size),
            is_first=place not in waiting,
            following=tuple(following.get(request.index, ())),
            is_last=request.index in last,
        )
        for place, request in enumerate(requests)
    )


def prompt_hashes(request: TraceRequest, trace_block_size: int, block_size: int) -> list[int]:
    """Return the sequence hashes of the prompt's full engine blocks, root first."""
    parts = trace_block_size // block_size
    hashes: list[int] = []
    parent = namespace_root(lora=request.lora)
    for block in range(request.input_tokens // block_size):
        place, part = divmod(block, parts)
        if place < len(request.block_ids):
            content = b"%d/%d" % (request.block_ids[place], part)
        else:
            content = b"unique %d/%d" % (request.index, block)
        parent = xxhash.xxh3_64_intdigest(parent.to_bytes(HASH_BYTES, "little") + content)
        hashes.append(parent)
    return hashes


class Errand:
    """One request from its sending to its end, over as many attempts as it takes.

    `failed` are the workers that failed it. How it went at the last of them: `worker`, the overlap
    it was sent there for, `error`, `status` (0: no answer) and `detail` in words. `moving`: its
    prompt was computed by a prefill engine, for the next attempt to fetch. `held_s` is how long a
    router held it, the last time from `held_from_s` on.
    """

    __slots__ = (
        "detail",
        "error",
        "failed",
        "held_from_s",
        "held_s",
        "moving",
        "overlap_blocks",
        "request",
        "router",
        "sent_s",
        "status",
        "worker",
    )

    def __init__(self, request: FleetRequest, router: int, sent_s: float) -> None:
        self.request = request
        self.router = router
        self.sent_s = sent_s
        self.failed: frozenset[WorkerId] = frozenset()
        self.worker = WorkerId(UNKNOWN)
        self.overlap_blocks: int | None = None
        self.moving = False
        self.held_s = self.held_from_s = 0.0
        self.error = "no worker"
        self.status = 0
        self.detail = ""

    def refuse(self, why: UnattainableError) -> None:
        """Note that its router refused it."""
        self.error, self.status, self.detail = "refused", why.status, str(why)


class Passage:
    """One attempt at a request: its way through an engine. Steps are numbers of its engine's steps.

    `segments` are the runs of steps in each of which it got a token, `open_step` the first of the
    run under way (-1: none). `grown_tokens` is what its router was told last. `factor` is how many
    times as long its answer takes to be seen as the engine takes to make it. Of an answer that will
    be cut the engine makes half. `prefills`: it computes the prompt for another engine, one token.
    `touch`: it has an engine use a prompt again, for one token, and is no request of the trace;
    `WARM`: it has one compute a prompt before it serves.
    """

    __slots__ = (
        "due_step",
        "engine",
        "errand",
        "factor",
        "fault",
        "first_token_s",
        "grown_tokens",
        "model",
        "open_step",
        "overlap_blocks",
        "prefills",
        "router",
        "segments",
        "tokens_before",
        "touch",
    )

    def __init__(
        self,
        errand: Errand,
        engine: int,
        overlap_blocks: int,
        fault: Fault | None = None,
        *,
        prefills: bool = False,
        touch: Touch | None = None,
    ) -> None:
        request, trace = errand.request, errand.request.trace
        self.prefills = prefills
        self.touch = touch
        self.errand = errand
        self.router = errand.router
        self.engine = engine
        self.overlap_blocks = overlap_blocks
        self.fault = fault
        self.factor = 1.0 if fault is None else fault.factor
        cut = fault is not None and fault.kind == "cut"
        tokens = max(1, trace.output_tokens // 2) if cut else trace.output_tokens
        kind = "/prefill" if prefills else "/touch" if touch is not None else ""
        name, tokens = f"{trace.index}{kind}", 1 if kind else tokens
        labels = Labels(lora_name=trace.lora) if trace.lora else NO_LABELS
        self.model = EngineRequest(name, request.hashes, trace.input_tokens, tokens, labels=labels)
        self.model.received = errand.moving
        self.first_token_s: float | None = None
        self.segments: list[tuple[int, int]] = []
        self.open_step = -1
        self.tokens_before = 0
        self.grown_tokens = 0
        self.due_step = -1

    def blame(self, worker: WorkerId, error: str, status: int) -> None:
        """Note on the errand that the attempt failed at `worker`, and with what."""
        errand = self.errand
        errand.failed |= {worker}
        errand.worker, errand.overlap_blocks = worker, self.overlap_blocks
        errand.error, errand.status = error, status

    def seen_s(self, now: float) -> float:
        """Return when is seen what the engine brings now."""
        if self.factor == 1.0:
            return now
        return self.model.queued_at + (now - self.model.queued_at) * self.factor

    def pause(self, step: int) -> None:
        """Note that the request gets no token from `step` on."""
        if self.open_step >= 0:
            self.segments.append((self.open_step, step - 1))
            self.tokens_before += step - self.open_step
            self.open_step = self.due_step = -1

    def produced_tokens(self, step: int) -> int:
        """Return the tokens it has at the end of `step`."""
        return self.tokens_before + step - self.open_step + 1
