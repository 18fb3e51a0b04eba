"""One request on its way through two workers: prefilled on the one, decoded on the other."""

import asyncio
import secrets
from collections.abc import Coroutine
from typing import Final
from urllib.parse import urlsplit

import msgspec

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.app.serve.routed import RoutedRequest
from kvmesh.app.serve.routing_context import RoutingContext, target_of
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.handshake import Meeting, Rendezvous, Transfer
from kvmesh.core.engines.registry import handshake_of
from kvmesh.core.health.outcomes import UNKNOWN, Attempt, failed_attempt
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.disaggregation import SplitOptions, prefill_request
from kvmesh.errors import NoWorkerError, TransportError
from kvmesh.transport.http.fetch import HTTP_OK, fetch
from kvmesh.transport.http.forward.plan import Outcome, Target, Wait
from kvmesh.transport.http.upstream.client import UpstreamFailure, UpstreamPool
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem

CLIENT_ERRORS: Final = range(400, 500)
_NO_PREFILL: Final = Problem(
    503, "no prefill worker can take this request", "no_worker", retry_after_s=1
)


class Sent(msgspec.Struct, frozen=True):
    """What the client sent, as far as the prefill worker must see it."""

    path: str
    body: bytes
    headers: Headers


class DisaggregatedRequest:
    """The forwarding plan of one request where there are prefill workers.

    Prompts with few uncached tokens at a worker that can do it all stay whole. Otherwise a prefill
    is booked and sent first or beside, as the engine's handshake wants it, and `decode` plans the
    rest. A prefill that fails is tried on another worker; with none left the decode workers do it
    all, if they can. Both halves have one owner: the scope of `decode`'s forwarding.
    """

    def __init__(
        self,
        context: RoutingContext,
        request: RouteRequest,
        decode: RoutedRequest,
        sent: Sent,
        pool: UpstreamPool,
        options: SplitOptions,
    ) -> None:
        self._forwarding = decode.forwarding
        self._context = context
        self._request = request
        self._decode = decode
        self._sent = sent
        self._pool = pool
        self._options = options
        self._split: bool | None = None
        self._decode_body: bytes | None = None
        self._prefiller: WorkerHeartbeat | None = None
        self._failed: frozenset[WorkerId] = frozenset()
        self._booked = ""
        self._task: asyncio.Task[None] | None = None
        self._blameless = False
        self._forwarding.scope.held.append(self._end_prefill)

    def next_target(self) -> Target | Problem | Wait | None:
        """Return the decode worker, once the prefill is done or on its way."""
        if self._split is None:
            self._split = not self._stays_whole()
            if self._split:
                self._decode.follow_prefill()
        if self._split and self._decode_body is None:
            return self._begin_prefill()
        target = self._decode.next_target()
        if self._decode_body is None or not isinstance(target, Target):
            return target
        return msgspec.structs.replace(target, body=self._decode_body)

    def on_attempt_failed(self, failure: UpstreamFailure) -> bool | Problem:
        """Begin again with another prefill: the decode worker may have fetched the last one."""
        blameless, self._blameless = self._blameless, False
        self._end_prefill()
        self._decode_body = None
        if blameless:
            self._decode.give_back()
            return True
        return self._decode.on_attempt_failed(failure)

    def on_head(self, status: int, headers: Headers) -> Headers:
        """Tell the client of both workers."""
        told = self._decode.on_head(status, headers)
        if self._prefiller is None or not self._split:
            return told
        return (*told, (b"x-kvmesh-prefill-worker", self._prefiller.worker.encode()))

    def on_tokens(self, tokens: int) -> None:
        """Take the tokens so far."""
        self._decode.on_tokens(tokens)

    def on_finish(self, outcome: Outcome) -> None:
        """Release all that is booked."""
        self._end_prefill()
        self._decode.on_finish(outcome)

    def _stays_whole(self) -> bool:
        """Return whether some worker that can do it all has little left to prefill."""
        context = self._context
        try:
            decision = context.scheduler.explain(self._request, context.clock())
        except NoWorkerError:
            return False
        return decision.chosen.uncached_tokens < self._options.threshold_tokens

    def _begin_prefill(self) -> Target | Problem | Wait | None:
        context = self._context
        wanted = prefill_request(self._request, self._failed)
        self._booked = wanted.request_id
        try:
            decision = context.scheduler.schedule(wanted, context.clock())
        except NoWorkerError:
            self._booked = ""
            return self._without_prefill()
        context.open_requests.add(wanted.request_id)
        context.tell_booked(wanted.request_id)
        self._prefiller = prefiller = context.router.heartbeats.get(decision.worker)
        if prefiller is None:
            self._end_prefill()
            return self._without_prefill()
        handshake = handshake_of(prefiller.engine_kind, prefiller.bootstrap_port)
        if isinstance(handshake, Rendezvous):
            return self._begin_meeting(prefiller, handshake)
        body = handshake.prefill_body(self._sent.body)
        self._start(self._await_prefill(prefiller, handshake, body))
        return Wait.WAIT

    def _without_prefill(self) -> Target | Problem | Wait | None:
        """Have a decode worker do it all, if one can; else give up."""
        self._split = False
        self._decode.stay_whole()
        target = self._decode.next_target()
        if self._failed and not isinstance(target, Target | Wait):
            return _NO_PREFILL
        return target

    def _begin_meeting(
        self, prefiller: WorkerHeartbeat, handshake: Rendezvous
    ) -> Target | Problem | Wait | None:
        """Send two workers to meet: the decode worker's answer is the client's."""
        target = self._decode.next_target()
        if not isinstance(target, Target):
            self._end_prefill()
            return target
        meeting = Meeting(
            host=urlsplit(prefiller.url).hostname or "",
            port=prefiller.bootstrap_port,
            room=secrets.randbits(63),
            dp_rank=prefiller.dp_rank,
        )
        body = handshake.body(self._sent.body, meeting)
        self._start(self._watch_prefill(prefiller, body))
        return msgspec.structs.replace(target, body=body)

    async def _await_prefill(
        self, prefiller: WorkerHeartbeat, handshake: Transfer, body: bytes
    ) -> None:
        """Go on with the decode when the prefill is done, or as things stand then."""
        status, answer = await self._call(prefiller, body)
        params = handshake.params(answer) if status == HTTP_OK else None
        attempt = failed_attempt("reset", status=status)
        if params is not None:
            self._decode_body = handshake.decode_body(self._sent.body, params)
            self._context.scheduler.first_token(self._booked, self._context.clock())
        elif status == HTTP_OK or status in CLIENT_ERRORS:
            # It transfers nothing, or the client is at fault: the decode worker will tell.
            self._blame(prefiller, status, answer)
            self._split = False
            self._decode.stay_whole()
        else:
            self._blame(prefiller, status, answer)
        self._task = None
        self._end_prefill(attempt)
        self._forwarding.proceed()

    async def _watch_prefill(self, prefiller: WorkerHeartbeat, body: bytes) -> None:
        """Begin anew when a prefill to meet fails: the decode worker would wait in vain."""
        status, answer = await self._call(prefiller, body)
        self._task = None
        if status == HTTP_OK:
            self._context.scheduler.first_token(self._booked, self._context.clock())
        self._end_prefill(failed_attempt("reset", status=status))
        if status == HTTP_OK or status in CLIENT_ERRORS:
            return
        self._blame(prefiller, status, answer)
        self._blameless = True
        text = f"{prefiller.url}: prefill failed with status {status}"
        failure = UpstreamFailure("before_send", "refused", text, prefiller.url)
        self._forwarding.fail_attempt(failure)

    async def _call(self, prefiller: WorkerHeartbeat, body: bytes) -> tuple[int, bytes]:
        """Return the prefill's status and answer; status 0 when there is none."""
        target = target_of(prefiller)
        try:
            return await fetch(
                self._pool,
                target.origin,
                self._sent.path,
                timeout_s=self._options.timeout_s,
                headers=(*self._sent.headers, *target.headers),
                json=body,
            )
        except TransportError as error:
            return 0, str(error).encode()

    def _blame(self, prefiller: WorkerHeartbeat, status: int, answer: bytes) -> None:
        self._failed |= {prefiller.worker}
        context = self._context
        context.counters.attempts_failed += 1
        context.log.warning(
            "prefill failed",
            worker=prefiller.worker,
            request_id=self._request.request_id,
            status=status,
            answer=answer[:200].decode(errors="replace"),
        )
        if len(self._failed) > self._options.max_retries:
            self._split = False
            self._decode.stay_whole()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        self._task = self._forwarding.scope.start(work)

    def _end_prefill(self, attempt: Attempt = UNKNOWN) -> None:
        """Give the prefill's booking back, and let go of it if it is still on its way."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        booked, self._booked = self._booked, ""
        if booked:
            context = self._context
            context.open_requests.discard(booked)
            if context.outbox is not None:
                context.outbox.ended(booked, attempt)
            booking = context.scheduler.finish(booked, context.clock(), attempt)
            if context.released is not None and booking is not None:
                context.released(booking)
