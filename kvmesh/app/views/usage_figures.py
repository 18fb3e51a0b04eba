"""Figures of usage: of the tenants that --metrics-tenant names, and of the record."""

from typing import Final

import msgspec

from kvmesh.app.views.figure import Figure, Table
from kvmesh.core.admission.usage import UsageSums
from kvmesh.core.admission.usage_book import UsageStatistics
from kvmesh.core.admission.usage_limits import LimitStatistics


class UsageFigures(msgspec.Struct, frozen=True):
    """The counts of a book, and how many requests it was never told of."""

    book: UsageStatistics
    uncounted: int


# How a figure is read, then what it is.
# fmt: off
USAGE: Final = Table[UsageSums](
    Figure("counter", "kvmesh_usage_requests", lambda one: {
               "whole": one.requests - one.errors, "error": one.errors},
           "Requests of a tenant that ended at this replica: those that failed are errors.",
           ("result",)),
    Figure("counter", "kvmesh_usage_tokens", lambda one: {
               "prompt": one.prompt_tokens, "cached": one.cached_tokens,
               "output": one.output_tokens},
           "Tokens of these requests; cached ones are part of the prompt.", ("kind",)),
    Figure("counter", "kvmesh_usage_engine_seconds", lambda one: one.engine_ms / 1000.0,
           "Time from the choice of a worker to the end, all attempts included."),
    labels=("tenant",),
)

USAGE_RECORD: Final = Table[UsageFigures](
    Figure("counter", "kvmesh_usage_batches", lambda one: {
               "made": one.book.batches, "received": one.book.received,
               "refused": one.book.refused},
           "Batches of usage made here, read of the usage stream, and not readable.", ("what",)),
    Figure("counter", "kvmesh_usage_lost_requests", lambda one: {
               "dropped": one.book.lost_requests, "uncounted": one.uncounted},
           "Requests that the record lacks: their batch was dropped while the usage stream was "
           "away, or they ended faster than they could be counted.", ("why",)),
    Figure("gauge", "kvmesh_usage_unsent_requests", lambda one: one.book.unsent,
           "Requests whose batch is not stored yet."),
)

LIMITS: Final = Table[LimitStatistics](
    Figure("gauge", "kvmesh_limited_accounts", lambda one: one.accounts,
           "Keys and tenants with limits."),
    Figure("counter", "kvmesh_limit_refusals", lambda one: one.refused,
           "Requests answered 429 by the limit that was reached: requests or tokens a minute, "
           "tokens a day.", ("limit",)),
)
