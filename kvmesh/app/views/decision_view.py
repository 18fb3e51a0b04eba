"""A recorded request as JSON: one row of a list, or everything that is known of it."""

import msgspec

from kvmesh._native import Record
from kvmesh.core.insight.decision_record import State
from kvmesh.core.insight.explain import DecisionView, view_decision, why


class DecisionRow(msgspec.Struct, frozen=True):
    """One request, where it went, and what became of it. Times are Unix seconds, or ms.

    `key` is unique among all routers; `request_id` is the client's. Blocks are of the prompt:
    `overlap_blocks` were believed cached, `round_robin_blocks` would have been under round robin.
    `cached_tokens` of `reported_tokens` is what the engine said; None: not reported. `held_ms` is
    the wait at the router before the decision, None while nothing is held. `estimated`: its router
    mode looks at no prompt, so `prompt_tokens` are told by the size of the body. `unforeseen` is
    why `overlap_blocks` and `cached_tokens` may differ: a word of
    `docs/reference/api.md`, "" for none.
    """

    key: str
    request_id: str
    router: str
    bucket: str
    worker: str
    policy: str
    why: str
    decided_at: float
    state: State
    status: int
    attempts: int
    failures: tuple[str, ...]
    prompt_tokens: int
    overlap_blocks: int
    total_blocks: int
    round_robin_blocks: int | None
    score: float
    considered: int
    weighed: int
    held_ms: float | None
    ttft_ms: float | None
    duration_ms: float | None
    reported_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    tenant: str = ""
    estimated: bool = False
    unforeseen: str = ""


class DecisionDetail(msgspec.Struct, frozen=True):
    """All that is known of one request. `note` says what is not."""

    request_id: str
    note: str
    outcome: DecisionRow
    decision: DecisionView


class Recorder(msgspec.Struct, frozen=True):
    """Who kept the records: `started` (Unix seconds) plus a record's seconds is Unix time."""

    router: str
    bucket: str
    offset_s: float

    def row(self, record: Record) -> DecisionRow:
        """Return a record for a list."""
        decision, usage, ended_s = record.decision, record.reported, record.ended_s
        if usage is not None and not (usage.prompt_tokens or usage.completion_tokens):
            usage = None  # only why the answer ended
        duration_ms = None if ended_s is None else 1000.0 * max(0.0, ended_s - record.decided_s)
        return DecisionRow(
            key=f"{self.router}/{self.offset_s:.0f}/{record.number}",
            request_id=record.request_id.decode("latin-1"),
            router=self.router,
            bucket=self.bucket,
            worker=decision.worker,
            policy=decision.policy,
            why=why(decision),
            decided_at=round(record.decided_s + self.offset_s, 3),
            state=record.state,
            status=record.status,
            attempts=record.attempts,
            failures=record.failures,
            prompt_tokens=decision.chosen.prompt_tokens,
            overlap_blocks=decision.overlap_blocks,
            total_blocks=decision.total_blocks,
            round_robin_blocks=record.round_robin_blocks,
            score=decision.score,
            considered=decision.considered,
            weighed=len(decision.candidates),
            held_ms=record.held_ms,
            ttft_ms=record.ttft_ms,
            duration_ms=duration_ms,
            reported_tokens=usage.prompt_tokens if usage else None,
            cached_tokens=usage.cached_tokens if usage else None,
            output_tokens=usage.completion_tokens if usage else None,
            tenant=record.tenant,
            estimated=record.estimated,
            unforeseen=decision.unforeseen,
        )

    def detail(self, record: Record) -> DecisionDetail:
        """Return everything about a record."""
        decision = record.decision
        weighed = len(decision.candidates)
        note = "every considered worker's terms are kept"
        if weighed < decision.considered:
            note = (
                f"considered {decision.considered} workers, kept the terms of {weighed}: "
                "so many decisions a second are kept whole, the newest of them"
            )
        if record.estimated:
            note += (
                "; its prompt was not tokenized, its tokens are estimated from the size of the body"
            )
        return DecisionDetail(
            request_id=record.request_id.decode("latin-1"),
            note=note,
            outcome=self.row(record),
            decision=view_decision(
                decision,
                router=self.router,
                bucket=self.bucket,
                forecast=record.forecast,
                left_out=record.left_out,
            ),
        )
