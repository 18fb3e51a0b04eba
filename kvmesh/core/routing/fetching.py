"""What each worker would bring to its device for one request, and from where."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from kvmesh._native import ActiveSequences, Booking, Speeds
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.terms import Brought
from kvmesh.core.engines.fetch import Access
from kvmesh.core.engines.registry import fetch_of
from kvmesh.core.index.overlaps import Found, OverlapView, by_worker
from kvmesh.core.index.tier_credit import HOST
from kvmesh.core.members.fetch_times import MIN_SAMPLE_TOKENS, PEER, PLACES, FetchTimes
from kvmesh.core.members.loads import MOST_TOKENS
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.registry import WorkerRegistry

WORTH_IT: Final = 0.9
"""A prefix is fetched that takes at most this share of the time it takes to compute."""

_SHARE_WEIGHT: Final = 0.02
_MOST_PENDING: Final = 4096

_Group = tuple[str, str]
_Holders = list[tuple[int, int, WorkerId]]


class FetchPlanner:
    """Weighs for each worker what it holds in slower memory, and what another worker holds more.

    What comes from another worker takes the place of something else: where the device is full, it
    costs as much more as that is likely to be missed, by the share of prompts that is cached at
    all. But never more than computing it there, which takes as much room.
    """

    def __init__(
        self,
        workers: WorkerRegistry,
        sequences: ActiveSequences,
        speeds: Speeds,
        overlaps: OverlapView,
    ) -> None:
        self._times = workers.fetch_times
        self._workers = workers
        self._sequences = sequences
        self._speeds = speeds
        self._overlaps = overlaps
        self._held_share = 0.0

    def plan(
        self, found: Found, request: RouteRequest | None, block_size: int, now: float
    ) -> dict[WorkerId, Brought]:
        """Return what workers would bring, of those that would bring anything. For `request` None
        nothing is fetched from other workers.

        O(workers that hold any of it), and of those that can fetch.
        """
        parts = {
            worker: {place: blocks * block_size for place, blocks in slower.items()}
            for worker, slower in found.slower.items()
        }
        plans = {worker: self._brought(worker, tokens, now) for worker, tokens in parts.items()}
        if self._workers.fetchers and request is not None:
            self._note_share(found, request, block_size)
            for worker, source, tokens in self._sources(found, request, block_size):
                plan = self._fetched(worker, source, tokens, parts.get(worker, {}), now)
                if plan is not None:
                    plans[worker] = plan
        return plans

    def _fetched(
        self,
        worker: WorkerId,
        source: WorkerId,
        tokens: int,
        parts: Mapping[int, int],
        now: float,
    ) -> Brought | None:
        """Return the plan with `tokens` from another worker; None where computing is as soon."""
        per_token = self._speeds.ms_per_token(worker)
        fetching_ms = self._times.ms(worker, {PEER: tokens}, per_token, now)
        if fetching_ms > WORTH_IT * per_token * tokens:
            return None
        whole = self._brought(worker, {**parts, PEER: tokens}, now)
        spared = (per_token * tokens - fetching_ms) / per_token
        missed = self._missed_ms(worker, tokens, per_token, now) / per_token
        worth = whole.worth_tokens + int(min(spared, missed))
        return msgspec.structs.replace(whole, source=source, worth_tokens=worth)

    def _note_share(self, found: Found, request: RouteRequest, block_size: int) -> None:
        """Take how much of a prompt somebody holds into the mean."""
        if request.prompt_tokens:
            held = max(found.overlaps.values(), default=0) * block_size / request.prompt_tokens
            self._held_share += _SHARE_WEIGHT * (min(1.0, held) - self._held_share)

    def _missed_ms(self, worker: WorkerId, tokens: int, per_token: float, now: float) -> float:
        """Return what it will take to have again what makes room for `tokens`, ms; none where there
        is room.
        """
        state, block_size = self._workers.state(worker), self._sequences.block_size
        (held,) = self._overlaps.cached_blocks((worker,))
        room = state.capacity_blocks - held if state.capacity_blocks else 0
        displaced = max(0, tokens - max(0, room) * block_size)
        index = self._overlaps.index
        if index is not None and len(index.tiers) > 1:
            per_token = min(per_token, self._times.ms_per_token(worker, HOST, per_token, now))
        return self._held_share * displaced * per_token

    def _brought(self, worker: WorkerId, tokens: Mapping[int, int], now: float) -> Brought:
        per_token = self._speeds.ms_per_token(worker)
        ms = self._times.ms(worker, tokens, per_token, now)
        worth = min(ms / per_token, float(MOST_TOKENS))
        fetched = tokens.get(PEER, 0)
        return Brought(tokens=tokens, worth_tokens=int(worth), fetched_tokens=fetched, ms=ms)

    def _sources(
        self, found: Found, request: RouteRequest, block_size: int
    ) -> Iterable[tuple[WorkerId, WorkerId, int]]:
        """Yield (worker, whose cache it may fetch from, tokens it lacks that are there).

        Equal token ids have equal hashes in every model, their KV blocks are each model's own: only
        who serves the same model is a source.
        """
        held = by_worker(found.reported)
        held.update({one: found.overlaps[one] for one in found.slower})
        fetchers, distrusted = self._workers.fetchers, self._workers.distrusted
        best: dict[_Group, _Holders] = {}
        for worker, access in fetchers.items():
            depth = held.get(worker, 0)
            if depth and worker not in distrusted and self._serves(worker, request.model):
                busy = self._sequences.loads(worker).active_requests
                best.setdefault(_group(access), []).append((-depth, busy, worker))
        holders = {group: sorted(all_of)[:2] for group, all_of in best.items()}
        for worker, access in fetchers.items():
            if _is_located(access) and not request.names_source:
                continue
            for depth, _, source in holders.get(_group(access), ()):
                tokens = (-depth - found.overlaps.get(worker, 0)) * block_size
                if source != worker and self._share_model(source, worker):
                    if tokens >= MIN_SAMPLE_TOKENS:
                        yield worker, source, tokens
                    break

    def _serves(self, worker: WorkerId, model: str) -> bool:
        models = self._workers.info(worker).models
        return not (model and models) or model in models

    def _share_model(self, one: WorkerId, other: WorkerId) -> bool:
        """Return whether one's KV blocks can be the other's: of the same model and size."""
        own_tokens = self._workers.own_tokens
        if own_tokens.get(one) != own_tokens.get(other):
            return False
        models, others = self._workers.info(one).models, self._workers.info(other).models
        return not (models and others) or not frozenset(models).isdisjoint(others)


def _is_located(access: Access) -> bool:
    """Return whether a request must say from where: then the label's rest is an address."""
    fetch = fetch_of(access.way)
    return fetch is not None and fetch.body is not None


def _group(access: Access) -> _Group:
    """Return what workers have in common that fetch from each other."""
    return (access.way, "" if _is_located(access) else access.rest)


class _Pending(msgspec.Struct, frozen=True, gc=False):
    worker: WorkerId
    brought: Brought
    computed_tokens: int
    device_tokens: int


class PendingFetches:
    """Requests under way whose workers bring something first: their first tokens tell how long that
    takes, not how fast the worker computes. `tokens` counts those to bring, by place.
    """

    def __init__(self, times: FetchTimes, speeds: Speeds) -> None:
        self._times = times
        self._speeds = speeds
        self._pending: dict[str, _Pending] = {}
        self.tokens = [0] * PLACES

    def __len__(self) -> int:
        """Return how many are under way."""
        return len(self._pending)

    def booked(
        self, request_id: str, worker: WorkerId, brought: Brought, *, prompt: int, held: int
    ) -> None:
        """Note a request of `prompt` tokens, `held` of them at its worker, in whatever memory."""
        while len(self._pending) >= _MOST_PENDING:
            del self._pending[next(iter(self._pending))]
        for place, tokens in brought.tokens.items():
            self.tokens[place] += tokens
        self._pending[request_id] = _Pending(
            worker=worker,
            brought=brought,
            computed_tokens=max(0, prompt - held - brought.fetched_tokens),
            device_tokens=max(0, held - brought.own_tokens()),
        )

    def first_token(self, booking: Booking, now: float) -> bool:
        """Learn from a first token; False if nothing was brought for it.

        One that waited for others says nothing: what it waited for and what it brought went on at
        the same time.
        """
        pending = self._pending.get(booking.request_id)
        if pending is None or pending.worker != booking.worker:
            return False
        waited = now - booking.booked_s > booking.service_s
        if booking.streams and not waited:
            speeds = self._speeds
            per_token = speeds.ms_per_token(booking.worker)
            others = booking.service_tokens - booking.uncached_tokens
            computed = pending.computed_tokens + others + speeds.steps.step_tokens
            taken_ms = booking.service_s * 1000.0 - per_token * computed
            self._times.learn(booking.worker, pending.brought.tokens, taken_ms, per_token, now)
        return True

    def ended(self, request_id: str) -> int | None:
        """Forget a request; return the prompt tokens on its worker's device when it was booked,
        None if nothing was brought for it.
        """
        pending = self._pending.pop(request_id, None)
        return None if pending is None else pending.device_tokens
