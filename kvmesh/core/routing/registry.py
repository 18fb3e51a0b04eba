"""Which workers may take a request, and what they say of themselves."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, cast

from kvmesh._native import ActiveSequences, Speeds, WorkerState
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import NO_HASHES
from kvmesh.core.cost.adapters import AdapterSlots
from kvmesh.core.engines.fetch import Access
from kvmesh.core.engines.registry import access_of
from kvmesh.core.members.block_sizes import measure, scaled, told_blocks
from kvmesh.core.members.fetch_times import FetchTimes
from kvmesh.core.members.left_out import LeftOut, find_left_out
from kvmesh.core.members.loads import MOST_TOKENS, foreign_load, new_speeds
from kvmesh.core.members.membership import Change, Membership
from kvmesh.core.members.outcomes import SERVED, Attempt, Verdict
from kvmesh.core.members.url_guard import UrlGuard
from kvmesh.core.members.worker_info import (
    NO_ADAPTERS,
    NO_THRESHOLDS,
    LoadReport,
    Trust,
    WorkerInfo,
)
from kvmesh.core.routing.decision import UNRESTRICTED, Restriction, RouteRequest
from kvmesh.core.routing.disaggregation import does_whole
from kvmesh.core.routing.refusals import Refusals, busy
from kvmesh.errors import NoWorkerError

REPORTS_TO_BELIEVE: Final = 3
"""Load nobody here booked counts when so many reports in a row showed it: one is only lag."""

_MODELS_CACHED: Final = 64
_WISHES_CACHED: Final = 8
"""Names in what a request asks for up to which it is remembered who may take it."""

_Wish = tuple[str, Restriction]
_NO_INFO: Final = WorkerInfo()
_NO_REPORT: Final = LoadReport()


class WorkerRegistry:
    """Filters the living (`membership`) by model, pins, exclusions and load (`sequences`).

    `thresholds` may be changed at any time; `NO_THRESHOLDS` itself is off. `distrusted` are the
    workers whose events do not count, `late` those whose caches count a prompt once it is
    prefilled, with scores of `LatePrompts`; `known` are the states of all, `fetchers` those that
    can fetch from each other's caches; `guard` judges the URLs that workers name; `adapters` knows
    which LoRA adapters engines hold ready; `own_tokens` has their block sizes where those are not
    the router's. `sizes` tells how many blocks workers have cached, `bound` is told how many
    prompts, 0: any number, and blocks they keep. `panic`: nobody is known to be well, requests go
    to those who may be. `met_any`: some worker has been known; until `settled` others may come.
    """

    def __init__(
        self,
        membership: Membership,
        sequences: ActiveSequences,
        speeds: Speeds | None = None,
        fetch_times: FetchTimes | None = None,
    ) -> None:
        self.membership = membership
        self.thresholds = NO_THRESHOLDS
        self.distrusted: set[WorkerId] = set()
        self.late: dict[WorkerId, int] = {}
        self.guard = UrlGuard()
        self.adapters = AdapterSlots()
        self.panic = False
        self.on_report: Callable[[WorkerId, LoadReport], None] | None = None
        self.sizes: Callable[[Sequence[WorkerId]], list[int]] | None = None
        self.bound: Callable[[WorkerId, int, int], None] | None = None
        self._sequences = sequences
        self._speeds = speeds or new_speeds()
        self.fetch_times = fetch_times or FetchTimes()
        self.known: dict[WorkerId, WorkerState] = {}
        self.fetchers: dict[WorkerId, Access] = {}
        self.own_tokens: dict[WorkerId, int] = {}
        self._generation = sequences.generation
        self._picky = 0
        self._tainted = 0
        self._refusals = Refusals(membership)
        self._everyone: tuple[WorkerId, ...] = ()
        self._serving: dict[str, tuple[WorkerId, ...]] = {}
        self._states_of: tuple[tuple[WorkerId, ...], tuple[WorkerState, ...]] = ((), ())
        self._plain: dict[str, tuple[WorkerState, ...]] = {}
        self._wished: dict[_Wish, tuple[WorkerState, ...]] = {}
        self._priced: set[WorkerId] = set()
        self.met_any = False
        self._whole_left = False
        self.settled = True

    def state(self, worker: WorkerId) -> WorkerState:
        """Return the state of a worker, made if it never reported."""
        state = self.known.get(worker)
        if state is None:
            loads, prefill = self._sequences.loads(worker), self._speeds.prefill_ratio(worker)
            state = WorkerState(worker, loads, prefill, _NO_INFO, _NO_REPORT)
            self.known[worker] = state
        return state

    def describe(self, worker: WorkerId, info: WorkerInfo) -> None:
        """Note what a worker serves and how far its events are trusted."""
        self.met_any = True
        state = self.state(worker)
        if info == state.info:
            return
        self._wished.clear()
        if info.models != state.info.models:
            self._serving.clear()
            self._plain.clear()
        self._picky += bool(info.models) - bool(state.info.models)
        self._tainted += bool(info.taints) - bool(state.info.taints)
        if info.labels != state.info.labels:
            access = access_of(info.labels)
            self.fetchers.pop(worker, None)
            if access is not None:
                self.fetchers[worker] = access
        state.info = info
        self.size_up(state)
        distrusted = info.trust in (Trust.DEGRADED, Trust.APPROX)
        (self.distrusted.add if distrusted else self.distrusted.discard)(worker)
        (self.late.setdefault if info.caches_late else self.late.pop)(worker, 0)

    def report(self, worker: WorkerId, report: LoadReport) -> None:
        """Note an engine's own load figures.

        Load that no router booked (other clients, output nobody counted) and that
        `REPORTS_TO_BELIEVE` reports in a row showed is added to the worker's loads.
        """
        state = self.state(worker)
        report = state.report = scaled(report, state.own_tokens, self._sequences.block_size)
        if report.adapters is not NO_ADAPTERS:
            self.adapters.receive(worker, report.adapters)
        self.size_up(state)
        if report.prefill_busy_us:
            self._speeds.measured(worker, report.prefilled_tokens, report.prefill_busy_us)
        gap = foreign_load(report, state.loads, self._speeds.uncached_tokens)
        state.gaps = (*state.gaps, gap)[-REPORTS_TO_BELIEVE:]
        requests, blocks, tokens = (max(0, min(one)) for one in zip(*state.gaps, strict=True))
        if len(state.gaps) == REPORTS_TO_BELIEVE:
            self._sequences.correct(worker, requests, blocks, tokens if requests else 0)
        if self.on_report is not None:
            self.on_report(worker, report)

    def used_blocks(self, worker: WorkerId) -> int | None:
        """Return the blocks in use by the engine's last report; None without a fresh one that has
        any figures of blocks.
        """
        state = self.known.get(worker)
        if state is None or not state.gaps or not state.report.total_blocks:
            return None
        return state.report.used_blocks

    def forget_report(self, worker: WorkerId) -> None:
        """Count no load but what was booked: the engine's own figures are too old."""
        state = self.state(worker)
        state.report, state.gaps = state.report.size(), ()
        self._sequences.correct(worker, 0, 0, 0)

    def size_up(self, state: WorkerState) -> None:
        """Note how many blocks a worker has, no more than anyone can mean, and how many of them
        hold nothing.
        """
        size = self._sequences.block_size
        measure(state, size, self.own_tokens)
        told = state.report.blocks(size) or told_blocks(state, size)
        blocks = state.capacity_blocks = min(max(0, told), MOST_TOKENS)
        if blocks and self.bound is not None:
            self.bound(state.worker, state.report.prompt_slots, blocks)
        cached = blocks if self.sizes is None else self.sizes((state.worker,))[0]
        state.blank_blocks = max(0, blocks - cached)

    def note(
        self, worker: WorkerId, attempt: Attempt, now: float, request_id: str = ""
    ) -> Change | None:
        """Take what became of a request at a worker: who fails more than others gets a price, and
        beyond a bound nothing; return whether it is left out or let in now.
        """
        if attempt is SERVED and self.membership.health.served(worker, now):
            return None
        change = self.membership.note(worker, attempt, now, request_id)
        if attempt.verdict is Verdict.WORKER:
            self._priced.add(worker)
        if worker in self._priced:
            self._set_price(worker, now)
        return change

    def forgive(self, request_id: str, now: float) -> None:
        """Take back what a request made of workers that serve others."""
        for worker in self.membership.forgive(request_id, now):
            self._set_price(WorkerId(worker), now)

    def settle_prices(self, now: float) -> None:
        """Let old failures cost less. O(workers that failed lately), once a second is enough."""
        for worker in tuple(self._priced):
            self._set_price(worker, now)

    def _set_price(self, worker: WorkerId, now: float) -> None:
        share, lost_ms = self.membership.health.price(worker, now)
        if worker in self.membership:
            state = self.state(worker)
            state.failure_share, state.lost_ms = share, lost_ms
        if not share:
            self._priced.discard(worker)

    def remove(self, worker: WorkerId) -> None:
        """Remove a worker's state."""
        self._priced.discard(worker)
        self.adapters.remove(worker)
        state = self.known.pop(worker, None)
        if state is not None:
            self._picky -= bool(state.info.models)
            self._tainted -= bool(state.info.taints)
            self._serving.clear()
            self._plain.clear()
            self._wished.clear()
            self._states_of = ((), ())
            self._refusals.note_left(worker, state.info)
            self._whole_left = self._whole_left or does_whole(state.info.taints)
        self.distrusted.discard(worker)
        self.fetchers.pop(worker, None)
        self.own_tokens.pop(worker, None)
        self.fetch_times.remove_worker(worker)
        self.late.pop(worker, None)

    def expects_whole(self) -> bool:
        """Return whether a worker may come, or come back, that does whole requests. O(workers)."""
        if self._whole_left or not self.settled:
            return True
        return any(does_whole(state.info.taints) for state in self.known.values())

    def info(self, worker: WorkerId) -> WorkerInfo:
        """Return what a worker says of itself; the default for one that said nothing."""
        state = self.known.get(worker)
        return state.info if state else _NO_INFO

    def capacity_blocks(self, worker: WorkerId) -> int:
        """Return the KV blocks the engine has; 0 when unknown."""
        state = self.known.get(worker)
        return state.capacity_blocks if state else 0

    def everyone(self, now: float) -> tuple[WorkerId, ...]:
        """Return the workers that may be given work, sorted: the same object until that changes."""
        if self._generation != self._sequences.generation:
            self._generation = self._sequences.generation
            self._states_of = ((), ())
            self._plain.clear()
            self._wished.clear()
            for worker, state in self.known.items():
                state.loads = self._sequences.loads(worker)
        alive = cast("tuple[WorkerId, ...]", self.membership.usable(now))
        if alive is not self._everyone:
            self._everyone = alive
            self._serving.clear()
            self._plain.clear()
            self._wished.clear()
        return alive

    def states(self, names: tuple[WorkerId, ...]) -> tuple[WorkerState, ...]:
        """Return the state of each: the same object for the same `names` object."""
        if self._states_of[0] is not names:
            self._states_of = (names, tuple(self.state(name) for name in names))
        return self._states_of[1]

    def plain(self, model: str, now: float) -> tuple[WorkerState, ...]:
        """Return the states of those that may take a request for `model` without any wish, the same
        object until that changes; () where `eligible` has to look at each worker.
        """
        alive = self.everyone(now)
        if self._tainted or self.thresholds is not NO_THRESHOLDS:
            return ()
        if not self._picky:
            model = ""
        found = self._plain.get(model)
        if found is None:
            found = self._find_plain(model, alive)
        return found

    def cohort(
        self, model: str, now: float
    ) -> tuple[tuple[WorkerState, ...], tuple[WorkerState, ...]]:
        """Return `all_states`, and of them those that `plain` gives for a model."""
        everyone = self.all_states(now)
        if self._tainted or self.thresholds is not NO_THRESHOLDS:
            return everyone, ()
        if not self._picky:
            return everyone, everyone
        states = self._plain.get(model)
        return everyone, self._find_plain(model, self._everyone) if states is None else states

    def all_states(self, now: float) -> tuple[WorkerState, ...]:
        """Return the states of all that may be given work, the same object until that changes."""
        alive = self.everyone(now)
        found = self._plain.get("")
        return self._find_plain("", alive) if found is None else found

    def wished(self, request: RouteRequest, now: float) -> tuple[WorkerState, ...]:
        """Return the states of those that may take a request, whatever it asks for; () where only
        `eligible` can tell why none may. O(1) for what was asked before.
        """
        alive = self.everyone(now)
        asked = request.restriction()
        wish = (request.model if self._picky else "", asked)
        known = self.thresholds is NO_THRESHOLDS and not request.excluded
        found = self._wished.get(wish) if known else None
        if found is None:
            names = [one for one in alive if self._refusal(one, request) is None]
            found = tuple(map(self.state, names))
            some = sum(len(one) for one in asked if isinstance(one, frozenset))
            if known and some <= _WISHES_CACHED:
                if len(self._wished) == _MODELS_CACHED:
                    self._wished.clear()
                self._wished[wish] = found
        return found

    def _find_plain(self, model: str, alive: tuple[WorkerId, ...]) -> tuple[WorkerState, ...]:
        names = alive
        if model:
            known = self._serving.get(model)
            names = known or self._find_serving(RouteRequest("", NO_HASHES, 0, model=model), alive)
        states = tuple(self.state(name) for name in names)
        if states and len(self._plain) < _MODELS_CACHED:
            self._plain[model] = states
        return states

    def eligible(self, request: RouteRequest, now: float) -> tuple[WorkerId, ...]:
        """Return the workers that may take `request`, sorted; `everyone` itself when all may.

        O(1) for a request without wishes while no threshold is set. Where nobody may who is let
        in, those may that only failed requests speak against, unless it is pinned.
        Raises `NoWorkerError` with the reason for each worker.
        """
        alive = self.everyone(now)
        plain = not (
            self._tainted
            or request.excluded
            or request.restriction() != UNRESTRICTED
            or self.thresholds is not NO_THRESHOLDS
        )
        if not plain:
            names = tuple(one for one in alive if self._refusal(one, request) is None)
            names = alive if len(names) == len(alive) else names
        elif self._picky and request.model:
            names = self._serving.get(request.model) or self._find_serving(request, alive)
        else:
            names = alive
        names = names or self._last_resort(request, now)
        if not names:
            bare = request.bare()
            unknown = self._refusals.is_unknown(request.model, self._served())
            raise NoWorkerError(
                self._refusals.words(
                    request, now, lambda one: self._why_not(one, request, now), unknown=unknown
                ),
                wished=bare != request and any(self._refusal(one, bare) is None for one in alive),
                busy=self._only_busy(alive, request),
                unknown_model=unknown,
                unknown_worker=self._refusals.is_stranger(request.pinned_worker, now),
            )
        return names

    def _served(self) -> Iterator[tuple[str, ...]]:
        """Yield what each member says to serve."""
        return (self.info(WorkerId(name)).models for name in self.membership.members())

    def _last_resort(self, request: RouteRequest, now: float) -> tuple[WorkerId, ...]:
        if request.pinned_worker is not None or self._only_busy(self._everyone, request):
            return ()
        left_out = cast("tuple[WorkerId, ...]", self.membership.last_resort(now))
        return tuple(one for one in left_out if self._refusal(one, request) is None)

    def _find_serving(
        self, request: RouteRequest, alive: tuple[WorkerId, ...]
    ) -> tuple[WorkerId, ...]:
        names = tuple(one for one in alive if self._refusal(one, request) is None)
        names = alive if len(names) == len(alive) else names
        if len(self._serving) == _MODELS_CACHED:
            self._serving.clear()
            self._plain.clear()
        if names:
            self._serving[request.model] = names
        return names

    def _only_busy(self, alive: Sequence[WorkerId], request: RouteRequest) -> bool:
        """Return whether a worker would take the request but for its load."""
        return any(request.kept_from(one, self.info(one)) is None for one in alive)

    def left_out(self, request: RouteRequest, now: float) -> LeftOut:
        """Return the workers that `request` may not go to, with reasons. O(members)."""
        return find_left_out(
            self.membership.members(), lambda one: self._why_not(WorkerId(one), request, now)
        )

    def _why_not(self, worker: WorkerId, request: RouteRequest, now: float) -> str | None:
        return self.membership.why_not(worker, now) or self._refusal(worker, request)

    def _refusal(self, worker: WorkerId, request: RouteRequest) -> str | None:
        unfit = request.kept_from(worker, self.info(worker))
        return unfit or busy(self.state(worker), self.thresholds)
