"""Generated workloads: conversations, shared system prompts, related queries, agents with tools,
and bursts of code completions that share nothing.
"""

import random
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
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


def code_bursts(requests: int) -> list[TraceRequest]:
    """Return completions in bursts of 20 to 80 at 80 a second, pauses of 4 s between: prompts of
    which nothing is shared, 2 k tokens on average and up to 7.4 k, and answers of some 25 tokens.
    """
    rng, blocks = random.Random(4), count(1)
    found: list[TraceRequest] = []
    begin_ms = 0.0
    while len(found) < requests:
        now_ms, burst = begin_ms, rng.randint(20, 80)
        for _ in range(min(burst, requests - len(found))):
            now_ms += rng.expovariate(1 / 12.0)
            size = max(1, min(116, int(rng.lognormvariate(3.1, 0.9))))
            found.append(
                TraceRequest(
                    index=len(found),
                    timestamp_ms=now_ms,
                    input_tokens=size * BLOCK,
                    output_tokens=max(1, int(rng.lognormvariate(2.8, 0.9))),
                    block_ids=tuple(next(blocks) for _ in range(size)),
                )
            )
        begin_ms += rng.expovariate(1 / 4000.0) + 12.0 * burst
    return found


def tool_agents(requests: int) -> list[TraceRequest]:
    """Return turns of agents behind 12 tool prompts of 2 k to 6 k tokens, Zipf-popular: up to 20
    turns, each 1.5 to 8 s after the one before and longer by 64 tokens to 3.8 k, log-normally.
    """
    rng, blocks = random.Random(5), count(1)
    tools = [[next(blocks) for _ in range(rng.randint(32, 96))] for _ in range(12)]
    popularity = list(accumulate(1 / (rank + 1) for rank in range(12)))
    due: list[tuple[float, int, list[int], int]] = []
    found: list[TraceRequest] = []
    agents, next_ms = count(), 0.0
    while len(found) < requests:
        while not due or due[0][0] > next_ms:
            tool = rng.choices(tools, cum_weights=popularity)[0]
            turns = min(20, 1 + int(rng.expovariate(1 / 4.0)))
            heappush(due, (next_ms, next(agents), tool, turns))
            next_ms += rng.expovariate(1 / 400.0)
        now_ms, agent, context, turns = heappop(due)
        grown = max(1, min(60, int(rng.lognormvariate(2.2, 1.0))))
        context = [*context, *(next(blocks) for _ in range(grown))]
        found.append(
            TraceRequest(
                index=len(found),
                timestamp_ms=now_ms,
                input_tokens=len(context) * BLOCK,
                output_tokens=max(5, int(rng.lognormvariate(4.6, 0.8))),
                block_ids=tuple(context),
            )
        )
        if turns > 1:
            heappush(due, (now_ms + rng.uniform(1500.0, 8000.0), agent, context, turns - 1))
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
    "tool-agents": tool_agents,
    "code-bursts": code_bursts,
}
