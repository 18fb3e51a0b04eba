"""Whether a request is prefilled on another worker than it is decoded on: by what either costs."""

from typing import Final

import msgspec

from kvmesh.core.cost.formulas import PREDICTED_TIME, score_of
from kvmesh.core.cost.terms import NO_FLEET, Candidate
from kvmesh.core.routing.choice.kv_transfers import Transfers, moved_tokens
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.disaggregation import SplitOptions, decode_request, prefill_request
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.errors import NoWorkerError

LITTLE: Final = "little to prefill"
CHEAPER: Final = "cheaper whole"
NOBODY: Final = "no prefill worker"


class Way(msgspec.Struct, frozen=True):
    """What was decided: `reason` says why a request stays whole, "" splits it.

    `whole_ms` and `split_ms` are the two prices, 0 for one that nothing was compared with.
    """

    reason: str
    whole_ms: float = 0.0
    split_ms: float = 0.0


SPLIT: Final = Way("")


def choose_way(
    scheduler: Scheduler,
    request: RouteRequest,
    options: SplitOptions,
    transfers: Transfers,
    now: float,
) -> Way:
    """Return whether to split `request`: nothing is booked. O(workers).

    A prompt of which some worker that can do it all lacks fewer than `threshold_tokens` stays
    whole; where no worker can do it all it is split. Between them the cheaper way is taken, in ms
    of predicted time (the formula `predicted-time`, whatever the router's own): the prefill here or
    there with what it does to those who run or wait beside it, and the transfer.
    """
    try:
        whole = scheduler.explain(request, now).chosen
    except NoWorkerError:
        return SPLIT
    if whole.uncached_tokens < options.threshold_tokens:
        return Way(LITTLE)
    if not options.adaptive:
        return SPLIT
    try:
        prefill = scheduler.explain(prefill_request(request, frozenset()), now).chosen
        decode = scheduler.explain(decode_request(request), now).chosen
    except NoWorkerError:
        return Way(NOBODY)
    return weigh_ways(whole, prefill, decode, transfers)


def weigh_ways(
    whole: Candidate, prefill: Candidate, decode: Candidate, transfers: Transfers
) -> Way:
    """Return the cheaper way: all at `whole`, or at `prefill` and then, moved, at `decode`.

    `decode` is weighed with nothing to prefill, and its backlog as far as that is not done by the
    time the prompt is there.
    """
    moved_ms = transfers.predict_ms(moved_tokens(decode))
    own_ms = prefill.ms_per_token * (prefill.uncached_tokens + prefill.step_tokens)
    left_ms = decode.wait_ms - (prefill.wait_ms + own_ms + moved_ms)
    decode = msgspec.structs.replace(decode, wait_ms=max(0.0, left_ms))
    whole_ms = price_ms(whole)
    split_ms = price_ms(prefill) + moved_ms + price_ms(decode)
    return Way(CHEAPER if whole_ms <= split_ms else "", whole_ms, split_ms)


def price_ms(candidate: Candidate) -> float:
    """Return what a request costs at a worker, to itself and to those beside it, ms."""
    return score_of(PREDICTED_TIME, candidate, NO_FLEET, PREDICTED_TIME.weights.default)
