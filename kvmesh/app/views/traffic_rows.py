"""Traffic of now as JSON: of all, of each model, of each tenant. Rates are a second."""

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from kvmesh.core.insight.flow import ERRORS, FAILURES, NamedFlow, Rates

MOST_ROWS: Final = 128
"""Models, and tenants, in an overview: the busiest of the last minute."""


class TrafficRow(msgspec.Struct, frozen=True):
    """Requests that ended in the last quarter of a minute; tokens count where their request ends.

    `errors_per_s` by how they failed: `4xx` (without 429), `429`, `5xx`, `499` (the client left
    before the end), `cut` (broken off in the middle of an answer). `ttft_ms` and `tpot_ms` (time
    per token behind the first) are means, None without any. `queued` requests wait in engines,
    by their word, `held` at routers.
    """

    requests_per_s: float = 0.0
    errors_per_s: dict[str, float] = {}
    prompt_tokens_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    queued: int = 0
    held: int = 0


class ModelRow(msgspec.Struct, frozen=True):
    """Requests of the last minute that named one model. `errors_per_s` are those of all kinds but
    clients that left; `tokens_per_s` are of answers.
    """

    model: str
    requests_per_s: float
    errors_per_s: float
    ttft_ms: float | None
    tokens_per_s: float


class TenantRow(msgspec.Struct, frozen=True):
    """The same of one tenant."""

    tenant: str
    requests_per_s: float
    errors_per_s: float
    ttft_ms: float | None
    tokens_per_s: float


GroupT = TypeVar("GroupT", ModelRow, TenantRow)


def traffic_row(rates: Rates, *, queued: int, held: int) -> TrafficRow:
    """Return the row of all traffic."""
    return TrafficRow(
        requests_per_s=_rounded(rates.requests_per_s),
        errors_per_s={name: _rounded(rates.errors_per_s[name]) for name in ERRORS},
        prompt_tokens_per_s=_rounded(rates.prompt_tokens_per_s),
        output_tokens_per_s=_rounded(rates.output_tokens_per_s),
        ttft_ms=rates.ttft_ms,
        tpot_ms=rates.tpot_ms,
        queued=queued,
        held=held,
    )


def model_rows(flows: Iterable[NamedFlow]) -> list[ModelRow]:
    """Return a row a model."""
    return [ModelRow(one.name, *_numbers(one.rates)) for one in flows]


def tenant_rows(flows: Iterable[NamedFlow]) -> list[TenantRow]:
    """Return a row a tenant."""
    return [TenantRow(one.name, *_numbers(one.rates)) for one in flows]


def _numbers(rates: Rates) -> tuple[float, float, float | None, float]:
    failed = sum(rates.errors_per_s[name] for name in FAILURES)
    return (
        _rounded(rates.requests_per_s),
        _rounded(failed),
        rates.ttft_ms,
        _rounded(rates.output_tokens_per_s),
    )


def _rounded(rate: float) -> float:
    return round(rate, 4)


def merge_traffic(rows: Iterable[TrafficRow | None], *, queued: int) -> TrafficRow:
    """Return the traffic of several replicas as one. `queued` is of all their workers: replicas of
    a bucket have the same.
    """
    there = [one for one in rows if one is not None]
    requests, tokens = (
        [one.requests_per_s for one in there],
        [one.output_tokens_per_s for one in there],
    )
    return TrafficRow(
        requests_per_s=_rounded(sum(requests)),
        errors_per_s={
            name: _rounded(sum(one.errors_per_s.get(name, 0.0) for one in there)) for name in ERRORS
        },
        prompt_tokens_per_s=_rounded(sum(one.prompt_tokens_per_s for one in there)),
        output_tokens_per_s=_rounded(sum(tokens)),
        ttft_ms=_mean([one.ttft_ms for one in there], requests),
        tpot_ms=_mean([one.tpot_ms for one in there], tokens),
        queued=queued,
        held=sum(one.held for one in there),
    )


def merge_models(parts: Iterable[Sequence[ModelRow]]) -> list[ModelRow]:
    """Return each model once, busiest first."""
    merged: dict[str, list[ModelRow]] = {}
    for row in (row for rows in parts for row in rows):
        merged.setdefault(row.model, []).append(row)
    return _busiest([ModelRow(name, *_added(rows)) for name, rows in merged.items()])


def merge_tenants(parts: Iterable[Sequence[TenantRow]]) -> list[TenantRow]:
    """Return each tenant once, busiest first."""
    merged: dict[str, list[TenantRow]] = {}
    for row in (row for rows in parts for row in rows):
        merged.setdefault(row.tenant, []).append(row)
    return _busiest([TenantRow(name, *_added(rows)) for name, rows in merged.items()])


def _added(
    rows: Sequence[ModelRow] | Sequence[TenantRow],
) -> tuple[float, float, float | None, float]:
    requests = [one.requests_per_s for one in rows]
    return (
        _rounded(sum(requests)),
        _rounded(sum(one.errors_per_s for one in rows)),
        _mean([one.ttft_ms for one in rows], requests),
        _rounded(sum(one.tokens_per_s for one in rows)),
    )


def _busiest(rows: list[GroupT]) -> list[GroupT]:
    return sorted(rows, key=lambda one: -one.requests_per_s)[:MOST_ROWS]


def _mean(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """Return the mean of those that are told, each as heavy as its weight; None for none."""
    weighted = [
        (value, max(weight, 1e-6))
        for value, weight in zip(values, weights, strict=True)
        if value is not None
    ]
    whole = sum(weight for _, weight in weighted)
    return sum(value * weight for value, weight in weighted) / whole if weighted else None
