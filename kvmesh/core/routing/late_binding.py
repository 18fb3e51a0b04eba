"""Late binding: a request is given a worker when one can begin soon, and waits until then."""

from collections.abc import Callable
from math import inf
from typing import Final

import msgspec

from kvmesh._native import Placed
from kvmesh.core.admission.locality import NOTHING_CACHED, Cached, FairTurns
from kvmesh.core.admission.queue import (
    AdmissionOptions,
    HoldQueue,
    Refusal,
    WaitingRequest,
)
from kvmesh.core.cost.targets import Targets
from kvmesh.core.members.loads import MOST_TOKENS
from kvmesh.core.programs.governor import ANYWHERE, Governor
from kvmesh.core.programs.turn import Grant
from kvmesh.core.programs.waiting import expected_wait_s
from kvmesh.core.routing.choice.held import HELD_SHARE, HeldRequest, HeldTargets
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.routing.tenant_cost import OUTPUT_WEIGHT, cost_of, reserved
from kvmesh.errors import NoWorkerError

CHECK_EVERY_S: Final = 0.02
"""While requests wait: backlogs also shrink with time, and by what other replicas see."""

PAUSE_S: Final = 0.002
"""At least so long between two looks: a burst of first tokens is one event."""


class Released(msgspec.Struct, frozen=True):
    """A request that waits no longer, and why: its worker, none that could ever take it, or an
    error of ours, which is this request's alone.
    """

    request_id: str
    verdict: Placed | Exception


class LateBinding:
    """The scheduler behind its `queue`.

    A request waits while the worker it would get has a longer predicted backlog than
    `max_backlog_ms`, while all workers that could take it are above a busy threshold, and behind
    those that wait already. Its worker is chosen, and booked, when its turn comes.
    Without a bound, not `bounded`, a request waits for its own targets alone (`limit_ms`), least
    work first, and keeps nobody back who has none. Turns that a `governor` holds are `governed`,
    not `waiting`: they keep nobody else back.
    """

    def __init__(
        self, scheduler: Scheduler, options: AdmissionOptions, governor: Governor | None = None
    ) -> None:
        self._scheduler = scheduler
        self.queue = HoldQueue(options)
        self._ledger = scheduler.ledger
        self._turns = FairTurns(self._ledger)
        self._targets = HeldTargets(scheduler.slo, scheduler.judge)
        self.waiting: dict[str, RouteRequest] = {}
        self.governor = governor
        self.governed: dict[str, RouteRequest] = {}
        self.change(options)

    def __len__(self) -> int:
        return len(self.waiting) + len(self.governed)

    def change(self, options: AdmissionOptions) -> None:
        """Go by other options from now on; what waits already keeps its place."""
        self.queue.options = options
        self._ledger.quantum = max(1, options.quantum_tokens)
        for request_id, request in self.waiting.items():
            if not self._shares:
                self._turns.leave(request_id)
            elif request_id not in self._turns:
                self._turns.enter(*self.queue.find(request_id), request.hashes)
        self.bounded = options.max_backlog_ms > 0.0

    def limit_ms(self, targets: Targets | None) -> float:
        """Return above which backlog a request is held, inf: it never is, nor, as it might wait in
        vain, for targets where none are refused for them.
        """
        limit_ms = self.queue.options.max_backlog_ms or inf
        if targets is None or targets.ttft_ms is None:
            return limit_ms
        scheduler, held_ms = self._scheduler, HELD_SHARE * targets.ttft_ms
        if scheduler.options.mode != "kv" or not scheduler.judge.options.refuse_below:
            return limit_ms
        return min(limit_ms, held_ms)

    def bound_ms(self, tenant: str, targets: Targets | None = None) -> float | None:
        """Return how long the backlog may be where a request goes at once, None: it has to be asked
        about.
        """
        limit_ms = self.limit_ms(targets)
        if limit_ms < inf and (self.waiting or (self._shares and self._turns.gives_way(tenant))):
            return None
        return limit_ms

    def charge(self, tenant: str, cost: int) -> None:
        """Charge a request that went at once by `bound_ms`, as `ask` charges one that it places."""
        self._ledger.charge(self._ledger.account(tenant), cost)

    def ask(
        self, request: RouteRequest, now: float, *, tried: bool = False
    ) -> Placed | Refusal | None:
        """Choose and book, or hold (None: `release` will name the request), or refuse. `tried`: by
        `bound_ms` it could not go just now.

        Raises `NoWorkerError` when waiting would not help, `UnattainableError` when the request's
        targets would be missed.
        """
        governor, turn = self.governor, request.turn
        if governor is None or turn is None or tried:
            return self._ask(request, now, tried=tried)
        try:
            grant = governor.ask(turn, now, self._scheduler.workers.eligible(request, now))
        except NoWorkerError:
            return self._ask(request, now)
        if grant is None:
            if request.targets is not None:
                self._scheduler.slo.arrive(request.request_id, request.targets, now)
            self.governed[request.request_id] = request
            return None
        return self._ask(self._granted(request, grant), now)

    def _ask(
        self, request: RouteRequest, now: float, *, tried: bool = False
    ) -> Placed | Refusal | None:
        gives_way = self._shares and self._turns.gives_way(request.tenant)
        waits = self.waiting and self.limit_ms(request.targets) < inf
        if not (waits or tried or gives_way):
            placed = self._try(request, now)
            if placed is not None:
                self.charge(request.tenant, cost_of(request, placed))
                return placed
        held = WaitingRequest(
            request.request_id, self._work(request, now), request.tenant, request.priority
        )
        if (targets := request.targets) is not None:
            if not self.bounded and targets.ttft_ms is not None:
                held = msgspec.structs.replace(held, until_s=now + targets.ttft_ms / 1000.0)
            self._check_targets(request, targets, held, now)
        refusal = self.queue.offer(held, now)
        if refusal is None:
            self.waiting[request.request_id] = request
            if self._shares:
                self._take_turns(request)
        return refusal

    def release(self, now: float, weigh_all: Callable[[], bool]) -> list[Released]:
        """Choose and book for those whose turn it is. Call it whenever load may have fallen.

        `weigh_all` says whether the next decision shall carry every candidate. A request that
        cannot be decided about leaves the queue with its error; those behind it are asked. Turns
        of programs come first.
        """
        verdicts = self._refuse_late(now)
        if self.governed:
            verdicts += self._release_governed(now, weigh_all)
        if self._shares:
            return verdicts + self._release_shares(now, weigh_all)

        def admit(held: WaitingRequest) -> bool:
            request = self.waiting[held.request_id]
            verdict = self.attempt(request, now, weigh_all)
            if verdict is None:
                return False
            verdicts.append(self._released(request, verdict))
            return True

        for held in self.queue.release(now, admit):
            del self.waiting[held.request_id]
        return verdicts

    def _check_targets(
        self, request: RouteRequest, targets: Targets, held: WaitingRequest, now: float
    ) -> None:
        """Raise `UnattainableError` if a request that is to wait will begin too late."""
        own_ms = self._scheduler.speeds.fleet_ms_per_token * held.tokens
        asked = HeldRequest(request.request_id, targets, request.priority, own_ms)
        ahead_ms = self._ahead_ms(self.queue.tokens_before(held, now), now)
        error = self._targets.offer(asked, ahead_ms, now)
        if error is not None:
            raise error

    def _refuse_late(self, now: float) -> list[Released]:
        """Take those out of the queue that would begin too late for their targets."""
        if not self._targets:
            return []
        ahead_ms = self._ahead_ms(self.queue.tokens, now)
        late = self._targets.too_late(self.waiting, ahead_ms, now)
        for request_id, _ in late:
            del self.waiting[request_id]
            self._turns.leave(request_id)
            self.queue.refuse(request_id)
        return [Released(request_id, error) for request_id, error in late]

    def _ahead_ms(self, tokens: int, now: float) -> float:
        """Return how long all workers together take for so many prompt tokens."""
        workers = max(1, len(self._scheduler.workers.everyone(now)))
        return self._scheduler.speeds.fleet_ms_per_token * tokens / workers

    def settle(self, tenant: str, expected_output_tokens: int, output_tokens: int) -> None:
        """Charge `tenant` for the output of a request that has ended, and that was asked about
        here, instead of what was reserved.
        """
        used = min(max(0, output_tokens), MOST_TOKENS) - reserved(expected_output_tokens)
        if used > 0:
            self.charge(tenant, OUTPUT_WEIGHT * used)
        elif used < 0:
            self._ledger.give_back(tenant, -OUTPUT_WEIGHT * used)

    def _release_governed(self, now: float, weigh_all: Callable[[], bool]) -> list[Released]:
        """Place the turns that the governor lets go: they have waited, so no backlog holds them."""
        assert self.governor is not None, "only a governor holds turns"
        verdicts: list[Released] = []
        if self.governor.next_s(now) > now:
            return verdicts
        for request_id, grant in self.governor.release(now):
            request = self.governed.pop(request_id)
            verdict = self.attempt(self._granted(request, grant), now, weigh_all, bounded=False)
            if isinstance(verdict, NoWorkerError) and grant.workers is not None:
                verdict = self.attempt(request, now, weigh_all, bounded=False)
            assert verdict is not None, "without a bound it is decided"
            verdicts.append(self._released(request, verdict))
        return verdicts

    def _released(self, request: RouteRequest, verdict: Placed | Exception) -> Released:
        """Charge a request that waits no longer, if it was placed."""
        if not isinstance(verdict, Exception):
            self.charge(request.tenant, cost_of(request, verdict))
        return Released(request.request_id, verdict)

    def _take_turns(self, request: RouteRequest) -> None:
        try:
            self._turns.enter(*self.queue.find(request.request_id), request.hashes)
        except BaseException:
            self.cancel(request.request_id)
            raise

    def _release_shares(self, now: float, weigh_all: Callable[[], bool]) -> list[Released]:
        places = _Places(self, self._scheduler, now, weigh_all)
        for request_id in self._turns.release(places, now):
            self.queue.take(request_id, now)
            del self.waiting[request_id]
        return [Released(*placed) for placed in places.verdicts.items()]

    def expire(self, now: float) -> list[str]:
        """Return the ids of those that waited too long, and no longer do; targets end their own,
        but no client is kept waiting for longer than it was told.
        """
        late = [held.request_id for held in self.queue.expire(now)]
        for request_id in late:
            del self.waiting[request_id]
            self._turns.leave(request_id)
        return late

    def cancel(self, request_id: str) -> bool:
        """Forget a request whose client went away; False when it does not wait here."""
        if self.governed.pop(request_id, None) is not None:
            assert self.governor is not None, "only a governor holds turns"
            return self.governor.cancel(request_id)
        if self.waiting.pop(request_id, None) is None:
            return False
        self._turns.leave(request_id)
        return self.queue.cancel(request_id)

    def bound_s(self, request_id: str, most_s: float, now: float) -> float:
        """Have a request that is queued be refused in `most_s` seconds at the latest; return for
        how long a held one waits at most. A turn of a program waits as long as it may, then goes.
        """
        governor = self.governor
        if governor is None or request_id not in governor.waiting:
            return self.queue.bound(request_id, now + most_s) - now
        return governor.most_s(request_id)

    def expected_wait_s(self, request_id: str, now: float) -> float:
        """Return how long a held request is expected to wait from now on."""
        governor, ms_per_token = self.governor, self._scheduler.speeds.fleet_ms_per_token
        if governor is None or request_id not in governor.waiting:
            return self.queue.retry_after_s()
        return expected_wait_s(governor, request_id, ms_per_token, now)

    def _granted(self, request: RouteRequest, grant: Grant) -> RouteRequest:
        """Return a request that goes only where its turn may be taken, at the grant's price."""
        if grant == ANYWHERE:
            return request
        among = request.allowed_workers if grant.workers is None else grant.workers
        weight = self._scheduler.courses.raised(request, grant.prefill_weight)
        return msgspec.structs.replace(request, allowed_workers=among, overlap_score_weight=weight)

    @property
    def _shares(self) -> bool:
        return self.queue.options.fairness == "locality"

    def attempt(
        self,
        request: RouteRequest,
        now: float,
        weigh_all: Callable[[], bool],
        *,
        bounded: bool = True,
    ) -> Placed | Exception | None:
        """Do as `_try`, and return what that raises.

        Whoever is told of the error drops its traceback: through its frames and their callers an
        error that was returned holds itself, and the request, until the collector comes.
        """
        try:
            self._scheduler.trace = weigh_all()
            return self._try(request, now, bounded=bounded)
        except Exception as error:  # noqa: BLE001  one of many: the others wait behind it
            return error

    def _try(self, request: RouteRequest, now: float, *, bounded: bool = True) -> Placed | None:
        """Choose and book; None when waiting may help. Raises `NoWorkerError` when it will not."""
        bound = self.limit_ms(request.targets) if bounded else inf
        try:
            placed = self._scheduler.schedule_within(request, now, bound)
        except NoWorkerError as error:
            if error.busy and bound < inf:
                return None
            raise
        if placed is not None and self.governor is not None and request.turn is not None:
            self.governor.chosen(request.turn, placed.record.worker, now)
        return placed

    def _work(self, request: RouteRequest, now: float) -> int:
        """Return the prompt tokens that no worker has cached."""
        _, groups = self._scheduler.overlaps.find_groups(request.hashes, now)
        cached = groups[0][0] * self._scheduler.options.block_size if groups else 0
        return max(1, request.prompt_tokens - cached)


class _Places:
    """Where waiting requests may go in one look: what `FairTurns` asks of routing."""

    def __init__(
        self,
        binding: LateBinding,
        scheduler: Scheduler,
        now: float,
        weigh_all: Callable[[], bool],
    ) -> None:
        self._binding = binding
        self._scheduler = scheduler
        self._now = now
        self._weigh_all = weigh_all
        self._bound = binding.queue.options.max_backlog_ms or inf
        self._room = scheduler.with_room(now, self._bound)
        self.verdicts: dict[str, Placed | Exception] = {}

    def has_room(self) -> bool:
        """Return whether any worker's backlog is below the bound."""
        return bool(self._room)

    def cached(self, request_id: str) -> Cached:
        """Return how much of a waiting request is cached; of one that cannot be looked up nothing,
        and `place` tells why.
        """
        hashes, room = self._binding.waiting[request_id].hashes, self._room
        try:
            _, groups = self._scheduler.overlaps.find_groups(hashes, self._now)
        except Exception:  # noqa: BLE001  one of many: the others are next to it
            return NOTHING_CACHED
        if not groups:
            return NOTHING_CACHED
        near = (depth for depth, workers in groups if not room.isdisjoint(workers))
        return Cached(groups[0][0], next(near, 0))

    def would_take(self, request_id: str) -> bool:
        """Return whether the worker of its choice has room; True when only `place` can tell."""
        try:
            likeliest = self._scheduler.explain(self._binding.waiting[request_id], self._now)
        except Exception:  # noqa: BLE001  one of many: `place` tells why
            return True
        return likeliest.chosen.wait_ms <= self._bound

    def place(self, request_id: str, *, anywhere: bool) -> int | None:
        """Book a request; return what it costs its tenant."""
        request = self._binding.waiting[request_id]
        asked = request
        if anywhere:
            everyone = self._scheduler.workers.everyone(self._now)
            full = self._room.symmetric_difference(everyone)
            asked = msgspec.structs.replace(request, excluded=request.excluded | full)
        verdict = self._binding.attempt(asked, self._now, self._weigh_all)
        if verdict is None or (anywhere and isinstance(verdict, NoWorkerError)):
            return None
        self.verdicts[request_id] = verdict
        if isinstance(verdict, Exception):
            return 0
        worker = verdict.record.worker
        if self._scheduler.wait_ms(worker, self._now) > self._bound:
            self._room.discard(worker)
        return cost_of(request, verdict)
