"""One request whose prefill a sidecar of its decode worker asks for: both are chosen here."""

from functools import partial
from typing import Final

import msgspec

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.app.picker.unwatched import UnwatchedPicks
from kvmesh.app.serve.prefill import Prefill, Sent, Splits, report_split
from kvmesh.app.serve.routed import RoutedRequest
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.routing.choice.kv_transfers import moved_tokens
from kvmesh.core.routing.choice.split_choice import NOBODY, choose_way
from kvmesh.core.routing.choice.split_sidecars import Place, Sidecar
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.disaggregation import prefill_request
from kvmesh.errors import NoWorkerError
from kvmesh.transport.http.forward.plan import Outcome, Target, Wait
from kvmesh.transport.http.upstream.client import UpstreamFailure
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem

SERVER_ERROR: Final = 500
UNNAMED: Final = "unnamed worker"

_NOBODY: Final[frozenset[WorkerId]] = frozenset()


class SidecarWay(msgspec.Struct, frozen=True):
    """How sidecars are told, and who infers what becomes of prefills."""

    sidecar: Sidecar
    follow: UnwatchedPicks


class SidecarRequest:
    """The forwarding plan of one request that a sidecar may have prefilled elsewhere.

    Whether it is split is decided as for `DisaggregatedRequest`; then a prefill is booked, too, and
    the sidecar is told by headers where. What becomes of the prefill is not seen: its booking ends
    when events, reports or time show it, with the first token of the answer at the latest. A
    sidecar that answers 5xx may have failed at either worker, so the decode worker is not blamed.
    """

    def __init__(
        self,
        context: RoutingContext,
        request: RouteRequest,
        decode: RoutedRequest,
        sent: Sent,
        splits: Splits,
        *,
        way: SidecarWay,
    ) -> None:
        self._context = context
        self._request = request
        self._decode = decode
        self._sent = sent
        self._splits = splits
        self._sidecar = way.sidecar
        self._follow = way.follow
        self._whole: str | None = None
        self._prefill: Prefill | None = None
        self._waits = False
        decode.forwarding.scope.held.append(self._end_prefill)

    def next_target(self) -> Target | Problem | Wait | None:
        """Return the decode worker, with the headers that its sidecar needs."""
        if self._whole is None:
            self._choose()
        target = self._decode.next_target()
        if not isinstance(target, Target):
            return target
        headers = self._split() if not self._whole else None
        if headers is None and not self._whole:
            self._decode.give_back()
            self._stay_whole(NOBODY if self._prefill is None else UNNAMED)
            return self.next_target()
        if headers is None:
            headers = self._sidecar.whole(self._place(self._decode.worker)) or ()
        own = (*target.headers, *headers)
        return Target(
            target.origin, headers=own, alternatives=target.alternatives, worker=target.worker
        )

    def booked(self) -> str:
        """Return the id of the decode's booking."""
        return self._decode.booked()

    def note_prefill(self) -> None:
        """Take that the decode worker has the prompt's KV cache: the prefill is over, too."""
        self._end_prefill()
        self._decode.note_prefill()

    def on_attempt_failed(self, failure: UpstreamFailure) -> bool:
        """Release both; a sidecar's 5xx tells nothing of the decode worker."""
        split = self._prefill is not None and not self._whole
        self._end_prefill()
        if split and failure.status >= SERVER_ERROR:
            self._decode.give_back()
            return True
        return self._decode.on_attempt_failed(failure)

    def on_head(self, status: int) -> Headers:
        """Tell the client of both workers, or why there was but one."""
        own = self._decode.on_head(status)
        veiled = self._decode.one.veiled
        return (*own, *report_split(self._whole, self._prefill, veiled=veiled))

    def on_tokens(self, tokens: int) -> None:
        """Take the tokens so far; with the first the prefill is over."""
        self._end_prefill()
        self._decode.on_tokens(tokens)

    def on_finish(self, outcome: Outcome) -> None:
        """Release all that is booked, and count which way it went."""
        self._end_prefill()
        if self._whole is not None:
            self._context.counters.splits[self._whole] += 1
        self._decode.on_finish(outcome)

    def _choose(self) -> None:
        context, splits, why = self._context, self._splits, self._sent.why_whole
        if not context.router.prefillers:
            why = NOBODY
        if not why:
            now = context.clock()
            way = choose_way(
                context.scheduler, self._request, splits.options, splits.transfers, now
            )
            why = way.reason
        self._whole = why
        if not why:
            self._decode.follow_prefill()

    def _split(self) -> Headers | None:
        """Book the prefill, once; return what the sidecar is told, None where it cannot be."""
        prefill = self._prefill
        if prefill is None:
            wanted = prefill_request(self._request, _NOBODY)
            prefill = Prefill(self._context, wanted)
            try:
                prefill.book()
            except NoWorkerError:
                return None
            self._prefill, self._waits = prefill, True
            moved_ms = self._splits.transfers.predict_ms(moved_tokens(self._decode.chosen))
            self._decode.fetch_s = prefill.patience_s + moved_ms / 1000.0
            ended = partial(self._decode.forwarding.scope.enter, self._end_prefill)
            self._follow.follow(wanted.request_id, ended)
        return self._sidecar.split(self._place(prefill.name), self._place(self._decode.worker))

    def _place(self, worker: WorkerId) -> Place:
        beat: WorkerHeartbeat | None = self._context.router.heartbeats.get(worker)
        return Place("") if beat is None else Place(beat.url, beat.labels)

    def _stay_whole(self, why: str) -> None:
        self._end_prefill()
        self._whole = why
        self._decode.stay_whole()

    def _end_prefill(self) -> None:
        """Take the prefill for done, and give its booking back; does nothing the second time."""
        prefill = self._prefill
        if prefill is None or not self._waits:
            return
        self._waits = False
        name = prefill.booked()
        self._follow.drop(name)
        self._context.scheduler.assume_first_token(name, self._context.clock())
        prefill.give_back()
