"""What each request used, as it is accounted: once, when it is over, by whoever sent it.

Its engine's word counts where its answer was whole, else what the router knows: the prompt once an
answer began, and the tokens that were passed on. Attempts that failed, and prompts that were
computed again, count in `engine_ms` alone. The rest of a stream, asked for by a client that lost
it, counts the tokens behind those that it had.
"""

from collections.abc import Callable, Sequence

from kvmesh._native import Head, Record
from kvmesh.app.serve.routing_context import Ended
from kvmesh.core.admission.access import KEY_HEADER
from kvmesh.core.admission.usage import MOST_SHOWN, Consumer, UsageSums
from kvmesh.core.admission.usage_book import UsageBook
from kvmesh.core.dispatch.dispatched import Dispatched
from kvmesh.core.insight.flow import FAILURES, error_class


def meter(
    book: UsageBook, ended: Sequence[Ended], used: Callable[[Consumer, UsageSums], None]
) -> None:
    """Count requests that ended, and tell `used` of each. Some 3 us each."""
    for one in ended:
        record, model, tenant, kind, status, dispatched, head, passed = one
        who = consumer_of(tenant, model, dispatched, head)
        usage = used_by(record, kind, status, passed)
        book.count(who, usage)
        used(who, usage)


def consumer_of(tenant: str, model: str, one: Dispatched, head: Head) -> Consumer:
    """Return whose request it was."""
    wishes, turn = one.wishes or one.made, one.turn
    key = head.get(KEY_HEADER)
    session = "" if wishes is None else wishes.session
    return Consumer(
        tenant[:MOST_SHOWN],
        "" if key is None else key.decode("utf-8", "replace")[:MOST_SHOWN],
        model[:MOST_SHOWN],
        session or ("" if turn is None else turn.agent),
        "" if turn is None else turn.program,
    )


def used_by(record: Record | None, kind: str, status: int, passed: int | None) -> UsageSums:
    """Return what a request used that ended as `kind` with `status`; its client had `passed` tokens
    of the stream that it asked for again, None of any other.
    """
    error = error_class(kind, status)
    sums = UsageSums(requests=1, errors=int(error in FAILURES))
    if record is None:
        return sums
    if record.ended_s is not None:
        sums.engine_ms = max(0, round((record.ended_s - record.decided_s) * 1000.0))
    usage, began = record.reported, record.first_token_s is not None
    if usage is not None and (usage.prompt_tokens or usage.completion_tokens):
        sums.prompt_tokens, sums.output_tokens = usage.prompt_tokens, usage.completion_tokens
        cached = usage.cached_tokens
    elif began or not error:
        sums.prompt_tokens = 0 if record.estimated else record.prompt_tokens
        sums.output_tokens, cached = record.output_tokens, None
    else:
        return sums
    if cached is None:
        cached = record.overlap_blocks * record.block_size
    if passed is not None:
        sums.prompt_tokens, sums.output_tokens = 0, max(0, sums.output_tokens - passed)
    sums.cached_tokens = min(cached, sums.prompt_tokens)
    return sums
