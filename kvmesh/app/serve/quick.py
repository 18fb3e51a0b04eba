"""A request that the compiled core decided: watched, answered, released by it as long as all goes
well; as any other request from its first failure on.
"""

import msgspec

from kvmesh._native import Placed
from kvmesh.app.prompts.request_wishes import RequestWishes
from kvmesh.app.serve.placement import Placement, told_headers
from kvmesh.app.serve.routed import RoutedRequest, say_accessed
from kvmesh.app.serve.routing_context import Ended, RoutingContext
from kvmesh.app.serve.routing_lines import say_routed
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.dispatch.compiled import CompiledDispatch
from kvmesh.core.dispatch.turns import turn_served
from kvmesh.core.engines.sse import Usage
from kvmesh.core.health.outcomes import SUCCESS
from kvmesh.core.health.progress import Due
from kvmesh.core.programs.turn import Turn, TurnEnd
from kvmesh.core.routing.overdue import patience_s
from kvmesh.transport.http.forward.plan import Forwarding, Outcome, Target, Wait
from kvmesh.transport.http.server.scope import Scope
from kvmesh.transport.http.upstream.client import UpstreamFailure
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem


class QuickRequest(RoutedRequest):
    """The forwarding plan of a request that was decided by the compiled core.

    `_placed` is None from its first failure on, or whatever else is unusual: then all is as if it
    had been decided by `Dispatch`. `turn` is its program's, None where it is part of none.
    """

    __slots__ = ("_compiled", "_placed", "_sent", "_turn", "_wishes")

    def __init__(
        self,
        context: RoutingContext,
        compiled: CompiledDispatch,
        placed: Placed,
        forwarding: Forwarding,
        turn: Turn | None,
        wishes: RequestWishes,
    ) -> None:
        self.forwarding = forwarding
        self._context = context
        self._compiled = compiled
        self._placed: Placed | None = placed
        self._sent = False
        self._turn = turn
        self._wishes = wishes
        self._status = 0
        self._ended = False
        context.counters.requests += 1
        context.budget.deposit()
        forwarding.scope.held.append(self._give_back)
        if turn is not None:
            record = placed.record
            asked = record.held_ms is not None
            context.routing.turns.begin(turn, record.worker, record.decided_s, asked=asked)

    def next_target(self) -> Target | Problem | Wait | None:
        """Return the worker decided on; later on choose another."""
        placed, context = self._placed, self._context
        if placed is None or self._sent:
            self._leave()
            return super().next_target()
        self._sent = True
        heartbeat = context.router.heartbeats.get(placed.record.worker)
        if heartbeat is None:
            self._leave()
            self.give_back()
            return None
        request_id = placed.request_id
        context.open_requests.add(request_id)
        context.hangs.waiting[self] = None
        if context.debug:
            say_routed(context.log, placed.record.decision)
        target = context.targets.of(heartbeat)
        if context.alternatives is None:
            return target
        worker, now = placed.record.worker, placed.record.decided_s
        if not self._wishes.chooses:
            others = context.alternatives.of_plain(worker, placed.model, now)
        else:
            one = self._compiled.continued(placed, self._turn, self._wishes)
            decision = placed.record.decision
            others = context.alternatives.of_decision(decision, one.request, frozenset(), now)
        return msgspec.structs.replace(target, alternatives=others)

    def on_attempt_failed(self, failure: UpstreamFailure) -> bool:
        """Do as any other request does."""
        self._leave()
        return super().on_attempt_failed(failure)

    @property
    def due(self) -> Due | None:
        """Return what its worker's engine owes it."""
        placed = self._placed
        if placed is None:
            return super().due
        record = placed.record
        return Due(record.decided_s, patience_s(record.decision.chosen))

    @property
    def sent_s(self) -> float:
        """Return when the present attempt began."""
        return super().sent_s if self._placed is None else self._placed.record.decided_s

    @property
    def worker(self) -> WorkerId:
        """Return the worker chosen last."""
        return super().worker if self._placed is None else self._placed.record.worker

    def on_head(self, status: int, headers: Headers) -> Headers:
        """Take that this answer is the client's, and tell the client whose it is."""
        placed, context = self._placed, self._context
        if placed is None:
            return super().on_head(status, headers)
        self._status = status
        context.hangs.waiting.pop(self, None)
        record = placed.record
        own = told_headers(context, record.worker, record.overlap_blocks)
        if placed.inputs is not None and (arm := placed.inputs.made.arm) is not None:
            own.append((b"x-kvmesh-policy", arm.header))
        return own

    def answer_headers(self) -> Headers:
        """Return what is told to the client of the decision."""
        self._leave()
        return super().answer_headers()

    def progress(self, tokens: int) -> None:
        """Take the tokens so far: the first ends the prefill, the others grow the booking."""
        placed, context = self._placed, self._context
        if placed is None:
            super().progress(tokens)
        elif self._compiled.seen(placed, tokens, context.clock()) and context.gate.waiting:
            context.gate.load_fell()

    def finish(self, outcome: Outcome, usage: Usage | None) -> None:
        """Release what was served, and learn from it."""
        placed, context = self._placed, self._context
        whole = outcome.kind == "finished" and self._status in SUCCESS
        good = whole and outcome.watched and not (outcome.error or outcome.doubted)
        if placed is None or not good:
            self._leave()
            super().finish(outcome, usage)
            return
        request_id = placed.request_id
        context.hangs.waiting.pop(self, None)
        context.open_requests.discard(request_id)
        now = context.clock()
        if (turn := self._turn) is not None:
            self._turn = None
            context.routing.turns.end(turn, _end_of(placed, usage), now)
        booking = self._compiled.finish(placed, outcome.status, usage, now)
        self._ended = True
        if booking is not None and context.released is not None:
            context.released(booking)
        if context.gate.waiting:
            context.gate.load_fell()
        if context.debug:
            say_accessed(context, placed.record.worker, request_id, usage)

    @property
    def request_id(self) -> str:
        """Return the id of its bookings."""
        return super().request_id if self._placed is None else self._placed.request_id

    def leave_turn(self) -> None:
        """Have its program's turn be over, if it was begun and nothing came of it."""
        if self._placed is None:
            super().leave_turn()
        elif self._turn is not None:
            turn, self._turn = self._turn, None
            end = TurnEnd(served=False, worker=self._placed.record.worker)
            self._context.routing.turns.end(turn, end, self._context.clock())

    def _told_end(self, scope: Scope) -> Ended:
        if (placed := self._placed) is None:
            return super()._told_end(scope)
        record = placed.record
        return record, placed.model, record.tenant, scope.kind, scope.status

    def _leave(self) -> None:
        """Be from now on as if `Dispatch` had decided, and booked."""
        placed = self._placed
        if placed is None:
            return
        one = self._compiled.continued(placed, self._turn, self._wishes)
        self._placement = Placement(self._context, one, placed.record.decision)
        self._one = one
        self._whole = None
        self.fetch_s = 0.0
        self._attempts = 1
        self._since_s = placed.record.decided_s
        self._blame = None
        self._failed = frozenset()
        self._lost = True
        self._governed = False
        self._refusal = None
        # Last: until all of this stands the end has to find the booking by what was placed.
        self._placed = None


def _end_of(placed: Placed, usage: Usage | None) -> TurnEnd:
    """Return how the turn of a request that was served ended."""
    record, booking = placed.record, placed.booking
    if placed.inputs is None:
        uncached = max(0, placed.prompt_tokens - record.overlap_blocks * record.block_size)
    else:
        uncached = record.decision.chosen.uncached_tokens
    return turn_served(
        record.worker, usage, 0 if booking is None else booking.output_tokens, uncached
    )
