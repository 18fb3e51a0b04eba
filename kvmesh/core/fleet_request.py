"""A trace's requests as a simulated fleet takes them: hashes instead of tokens."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import xxhash

from kvmesh.core.engine_request import EngineRequest
from kvmesh.core.events import HASH_BYTES, ROOT
from kvmesh.core.trace import TraceRequest, split_sessions
from kvmesh.errors import ConfigError


class FleetRequest(msgspec.Struct, frozen=True):
    """One request with the sequence hashes of its prompt's full engine blocks.

    `following` is the next turn's place in the list of requests, which waits for this one's end;
    `is_first` tells that nothing has to end before this one. Times are seconds.
    """

    trace: TraceRequest
    hashes: list[int]
    is_first: bool
    following: int | None


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
    following: dict[int, int] = {}
    for chain in split_sessions(requests):
        for turn, later in pairwise(chain):
            following[turn.index] = places[later.index]
    waiting = set(following.values())
    return tuple(
        FleetRequest(
            trace=request,
            hashes=prompt_hashes(request, trace_block_size, block_size),
            is_first=place not in waiting,
            following=following.get(request.index),
        )
        for place, request in enumerate(requests)
    )


def prompt_hashes(request: TraceRequest, trace_block_size: int, block_size: int) -> list[int]:
    """Return the sequence hashes of the prompt's full engine blocks, root first."""
    parts = trace_block_size // block_size
    hashes: list[int] = []
    parent = ROOT
    for block in range(request.input_tokens // block_size):
        place, part = divmod(block, parts)
        if place < len(request.block_ids):
            content = b"%d/%d" % (request.block_ids[place], part)
        else:
            content = b"unique %d/%d" % (request.index, block)
        parent = xxhash.xxh3_64_intdigest(parent.to_bytes(HASH_BYTES, "little") + content)
        hashes.append(parent)
    return hashes


class Passage:
    """One request on its way through the fleet. Steps are numbers of its engine's steps.

    `segments` are the runs of steps in each of which it got a token, `open_step` the first of the
    run under way (-1: none). `grown_tokens` is what its router was told last.
    """

    __slots__ = (
        "due_step",
        "engine",
        "first_token_s",
        "grown_tokens",
        "model",
        "open_step",
        "overlap_blocks",
        "request",
        "router",
        "segments",
        "sent_s",
        "tokens_before",
    )

    def __init__(
        self, request: FleetRequest, router: int, engine: int, overlap_blocks: int, sent_s: float
    ) -> None:
        trace = request.trace
        self.request = request
        self.router = router
        self.engine = engine
        self.overlap_blocks = overlap_blocks
        self.sent_s = sent_s
        self.model = EngineRequest(
            str(trace.index), request.hashes, trace.input_tokens, trace.output_tokens
        )
        self.first_token_s: float | None = None
        self.segments: list[tuple[int, int]] = []
        self.open_step = -1
        self.tokens_before = 0
        self.grown_tokens = 0
        self.due_step = -1

    def pause(self, step: int) -> None:
        """Note that the request gets no token from `step` on."""
        if self.open_step >= 0:
            self.segments.append((self.open_step, step - 1))
            self.tokens_before += step - self.open_step
            self.open_step = self.due_step = -1

    def produced_tokens(self, step: int) -> int:
        """Return the tokens it has at the end of `step`."""
        return self.tokens_before + step - self.open_step + 1
