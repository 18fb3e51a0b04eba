"""Generated workloads with known reuse: conversations, shared system prompts, related queries."""

import random
from collections.abc import Callable, Mapping
from itertools import accumulate, count
from typing import Final

from kvmesh_lab.traces.trace import TraceRequest

BLOCK: Final = 64
_GAP_MS: Final = 100.0


def multi_turn(requests: int) -> list[TraceRequest]:
    """Return conversations of eight turns: each repeats all that was said before.

    A turn adds 5 to 14 blocks of question and answer and comes 4 s after the answer before.
    """
    rng, blocks = random.Random(1), count(1)
    found: list[TraceRequest] = []
    conversation: list[int] = []
    for index in range(requests):
        turn = index % 8
        if not turn:
            conversation = [next(blocks) for _ in range(8)]
        conversation += [next(blocks) for _ in range(rng.randint(5, 14))]
        found.append(
            TraceRequest(
                index=index,
                timestamp_ms=index // 8 * 8 * _GAP_MS + turn,
                input_tokens=len(conversation) * BLOCK,
                output_tokens=rng.randint(50, 250),
                block_ids=tuple(conversation),
                session=f"session-{index // 8}",
                delay_ms=4000.0 if turn else None,
            )
        )
    return found


def shared_prompt(requests: int) -> list[TraceRequest]:
    """Return short questions behind 40 system prompts of 24 to 72 blocks, Zipf-popular."""
    rng, blocks = random.Random(2), count(1)
    prompts = [[next(blocks) for _ in range(24 + number * 48 // 39)] for number in range(40)]
    rng.shuffle(prompts)
    popularity = list(accumulate(1 / (rank + 1) for rank in range(40)))
    return [
        _request(index, rng.choices(prompts, cum_weights=popularity)[0], blocks, rng, (4, 24))
        for index in range(requests)
    ]


def related_queries(requests: int) -> list[TraceRequest]:
    """Return questions on documents of 60 blocks: four each, within the next 40 requests."""
    rng, blocks = random.Random(3), count(1)
    waiting: list[list[int]] = []
    found: list[TraceRequest] = []
    for index in range(requests):
        if len(waiting) < 40:
            waiting += [[next(blocks) for _ in range(60)]] * 4
        document = waiting.pop(rng.randrange(len(waiting)))
        found.append(_request(index, document, blocks, rng, (10, 40)))
    return found


def _request(
    index: int,
    shared: list[int],
    blocks: "count[int]",
    rng: random.Random,
    own: tuple[int, int],
) -> TraceRequest:
    ids = [*shared, *(next(blocks) for _ in range(rng.randint(*own)))]
    return TraceRequest(
        index=index,
        timestamp_ms=index * _GAP_MS + rng.random() * _GAP_MS,
        input_tokens=len(ids) * BLOCK,
        output_tokens=rng.randint(50, 250),
        block_ids=tuple(ids),
    )


WORKLOADS: Final[Mapping[str, Callable[[int], list[TraceRequest]]]] = {
    "multi-turn": multi_turn,
    "shared-prompt": shared_prompt,
    "related-queries": related_queries,
}
