"""How full the workers of a bucket are, how many it would take, and what each costs to lose."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from kvmesh.bounds import real_number
from kvmesh.core.blocks.events import WorkerId

PRICE: Final = "kvmesh/price/"
"""What a label begins with that says what a worker's hardware costs, in any unit that all use."""

LEAST_PRICE: Final = 1e-6
MOST_PRICE: Final = 1e9


def read_price(labels: Iterable[str]) -> float | None:
    """Return the price that a worker's labels name, 0.0 where they name none.

    None: one of them is no number of `LEAST_PRICE` to `MOST_PRICE`. Of several the first in order
    counts.
    """
    prices = [
        real_number(one.removeprefix(PRICE), LEAST_PRICE, MOST_PRICE)
        for one in sorted(labels)
        if one.startswith(PRICE)
    ]
    return None if None in prices else next(iter(prices), 0.0)


class ScalingOptions(msgspec.Struct, frozen=True):
    """From when on workers count as full. `backlog_s`: predicted wait of a new request, s.

    `target`: how full they shall be, 0..1; what `wanted` is computed for.
    """

    backlog_s: float = 1.0
    target: float = 0.8


class WorkerUse(msgspec.Struct, frozen=True, kw_only=True):
    """One worker. Tokens are of KV cache, `capacity_tokens` 0: not known.

    `used_tokens` are those of requests that run there, `live_tokens` the contexts of live programs
    that it keeps, `alone_tokens` those expected to be asked for that no other worker keeps,
    `backlog_s` the predicted wait of a new request, `per_token_s` the time to prefill a token.
    `requests` of at most `slots` run, 0: not told. `price` is that of its hardware, 0: not told.
    """

    worker: WorkerId
    usable: bool = True
    capacity_tokens: int = 0
    used_tokens: int = 0
    live_tokens: int = 0
    alone_tokens: float = 0.0
    backlog_s: float = 0.0
    per_token_s: float = 0.0
    requests: int = 0
    slots: int = 0
    price: float = 0.0


class Saturation(msgspec.Struct, frozen=True):
    """How full `workers` usable workers are, by cause: 1 is full, more is too little by so much.

    Causes are `backlog` (prefill in front of a new request), `memory` (KV blocks of requests that
    run), `programs` (contexts of live programs), `slots` (places for requests) and `held` (requests
    that a router holds).
    `wanted`: how many workers it would take for the target, by cause, not rounded. A cause that
    nobody knows anything of is missing. `held` is of one router: that of several adds up, the
    others are the same for all.
    """

    workers: int
    share: dict[str, float]
    wanted: dict[str, float]


def saturation(
    workers: Collection[WorkerUse],
    options: ScalingOptions,
    *,
    waiting_tokens: int = 0,
    held_tokens: int = 0,
) -> Saturation:
    """Return how full the usable of these workers are.

    `waiting_tokens`: contexts of programs that are live and kept by no worker; `held_tokens`:
    uncached prompt tokens that a router holds. Unusable workers serve nothing and count for
    nothing; where none is usable, what waits wants one. O(workers).
    """
    usable = [one for one in workers if one.usable]
    count = len(usable)
    share: dict[str, float] = {}
    if usable:
        share["backlog"] = sum(one.backlog_s for one in usable) / count / options.backlog_s
    sized = [one for one in usable if one.capacity_tokens > 0]
    if sized:
        capacity = sum(one.capacity_tokens for one in sized)
        share["memory"] = sum(one.used_tokens for one in sized) / capacity
        live = sum(one.live_tokens for one in sized) + waiting_tokens
        share["programs"] = live / capacity
    placed = [one for one in usable if one.slots > 0]
    if placed:
        share["slots"] = sum(one.requests for one in placed) / sum(one.slots for one in placed)
    wanted = {cause: count * part / options.target for cause, part in share.items()}
    if usable:
        # What is held is prefilled by all of them at once.
        mean_s = sum(one.per_token_s for one in usable) / count
        work = held_tokens * mean_s / options.backlog_s
        share["held"] = work / count
        wanted["held"] = work / options.target
    elif held_tokens or waiting_tokens:
        wanted["held"] = 1.0
    return Saturation(workers=count, share=share, wanted=wanted)


def drain_costs(workers: Collection[WorkerUse]) -> Mapping[WorkerId, float]:
    """Return what taking each worker away would cost the others, s of prefill by what it saves;
    cheapest first.

    The contexts that come back are prefilled anew elsewhere: the most of those of live programs,
    of the requests that run now, since a chat that nobody named comes back, too, and of what only
    this worker keeps. They overlap, so the sum would count twice. With them go the prompts in front
    of it. A worker saves its price against the mean price, 1 where none is known: of two that cost
    the others as much, one of twice the price counts half. Where costs are equal, the worker with
    fewer requests is first, then the dearer one. O(workers log workers).
    """
    known = [one.per_token_s for one in workers if one.per_token_s > 0.0]
    mean_s = sum(known) / len(known) if known else 0.0
    prices = [one.price for one in workers if one.price > 0.0]
    mean_price = sum(prices) / len(prices) if prices else 1.0
    saved = {one.worker: (one.price or mean_price) / mean_price for one in workers}
    cost: dict[WorkerId, float] = {}
    for one in workers:
        tokens = max(one.live_tokens, one.used_tokens, one.alone_tokens)
        cost[one.worker] = (mean_s * tokens + one.backlog_s) / saved[one.worker]
    order = sorted(
        workers, key=lambda one: (cost[one.worker], one.requests, -saved[one.worker], one.worker)
    )
    return {one.worker: cost[one.worker] for one in order}
