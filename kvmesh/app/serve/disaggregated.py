"""One request on its way through two workers: prefilled on the one, decoded on the other."""

import asyncio
import secrets
from collections.abc import Coroutine
from math import inf
from typing import Final

import msgspec

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.app.serve.prefill import (
    NO_ANSWER,
    NO_PREFILL,
    Fetch,
    Prefill,
    Sent,
    Splits,
    ask_engine_id,
    ask_prefill,
    cannot_split,
    meeting_of,
    read_answer,
    report_split,
)
from kvmesh.app.serve.routed import RoutedRequest
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.handshake import NO_PARAMS, Connector, Meeting
from kvmesh.core.members.outcomes import UNKNOWN, Attempt, failed_attempt
from kvmesh.core.routing.choice.kv_transfers import moved_tokens
from kvmesh.core.routing.choice.split_choice import NOBODY, choose_way
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.disaggregation import prefill_request
from kvmesh.core.routing.overdue import SLACK
from kvmesh.errors import NoWorkerError
from kvmesh.transport.http.fetch import HTTP_OK
from kvmesh.transport.http.forward.plan import WAIT, Outcome, Target, Wait
from kvmesh.transport.http.upstream.client import UpstreamFailure
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem

CLIENT_ERRORS: Final = range(400, 500)
SERVER_ERROR: Final = 500
LEASE_SHARE: Final = 0.8
"""Of its lease a prefill worker's blocks are fetched; what waited longer is computed again."""

CONTACT_S: Final = 10.0
"""Two engines that have not met before exchange what they are, and may take so long."""

FAILED: Final = "prefill failed"
LATE: Final = "transfer expired"


class DisaggregatedRequest:
    """The forwarding plan of one request where there are prefill workers.

    What may not be split, or is not worth it, stays whole, and the client is told why
    (x-kvmesh-whole). Otherwise a prefill is booked and sent first or beside, as the workers'
    connector wants it, and `decode` plans the rest. A prefill that fails is tried on another
    worker; with none left the decode workers do it all, if they can. Both halves have one owner:
    the scope of `decode`'s forwarding.
    """

    def __init__(
        self,
        context: RoutingContext,
        request: RouteRequest,
        decode: RoutedRequest,
        sent: Sent,
        splits: Splits,
    ) -> None:
        self._forwarding = decode.forwarding
        self._context = context
        self._request = request
        self._decode = decode
        self._sent = sent
        self._splits = splits
        self._whole: str | None = None
        self._fetch: Fetch | None = None
        self._held: Target | None = None
        self._prefill: Prefill | None = None
        self._failed: frozenset[WorkerId] = frozenset()
        self._task: asyncio.Task[None] | None = None
        self._blameless = False
        self._forgave = False
        self._fetching = False
        self._forwarding.scope.held.append(self._end_prefill)

    def next_target(self) -> Target | Problem | Wait | None:
        """Return the decode worker, once the prefill is done or on its way."""
        if self._whole is None:
            self._choose()
        if self._whole:
            target = self._decode.next_target()
            # One that was held for a worker in vain lacks the same still.
            return self._lacking(target) if isinstance(target, Problem) else target
        fetch = self._fetch
        if fetch is None:
            return self._begin_prefill()
        held, self._held = self._held, None
        target = held or self._decode.next_target()
        if not isinstance(target, Target):
            return target
        if fetch.lease_s and self._context.clock() - fetch.since_s > LEASE_SHARE * fetch.lease_s:
            self._decode.give_back()
            self._stay_whole(LATE)
            return self._decode.next_target()
        self._fetching = True
        # One that was chosen before the prefill was done has waited for that.
        self._decode.fetch_s = self._context.clock() - self._decode.sent_s + self._fetching_s()
        return msgspec.structs.replace(target, body=fetch.body, request_id=fetch.request_id)

    def booked(self) -> str:
        """Return the id of the decode's booking."""
        return self._decode.booked()

    def note_prefill(self) -> None:
        """Take that the decode worker has the prompt's KV cache."""
        self._decode.note_prefill()

    def on_attempt_failed(self, failure: UpstreamFailure) -> bool:
        """Begin again with another prefill: the decode worker may have fetched the last one.

        Of a decode worker that answers 5xx it is not known whose fault that was: it may not have
        got the KV cache. Once it is not blamed, and another prefill worker, or none, is taken.
        """
        blameless, self._blameless = self._blameless, False
        lost, self._fetch, self._fetching = self._fetch is not None, None, False
        self._end_prefill()
        if lost and failure.status >= SERVER_ERROR and not self._forgave:
            assert self._prefill is not None, "fetched from it"
            self._failed |= {self._prefill.name}
            self._forgave = blameless = True
        if blameless:
            self._decode.give_back()
            return True
        return self._decode.on_attempt_failed(failure)

    def on_head(self, status: int) -> Headers:
        """Tell the client of both workers, or why there was but one."""
        self._sent = msgspec.structs.replace(self._sent, body=b"")  # streams are long
        if self._fetch is not None:
            self._fetch = msgspec.structs.replace(self._fetch, body=b"")
        own = self._decode.on_head(status)
        veiled = self._decode.one.veiled
        return (*own, *report_split(self._whole, self._prefill, veiled=veiled))

    def on_tokens(self, tokens: int) -> None:
        """Take the tokens so far; the first tells how long the prompt's KV cache took to come."""
        if self._fetching:
            self._fetching = False
            since_s = self._decode.sent_s if self._fetch is None else self._fetch.since_s
            waited_s = self._context.clock() - max(since_s, self._decode.sent_s)
            self._splits.transfers.seen(self._decode.chosen, waited_s)
        self._decode.on_tokens(tokens)

    def on_finish(self, outcome: Outcome) -> None:
        """Release all that is booked, and count which way it went."""
        self._end_prefill()
        if self._whole is not None:
            self._context.counters.splits[self._whole] += 1
        self._decode.on_finish(outcome)

    def _choose(self) -> None:
        """Decide whether to split, once."""
        context, splits = self._context, self._splits
        why = self._sent.why_whole
        if why:
            try:
                context.scheduler.explain(self._request, context.clock())
            except NoWorkerError:
                # Some connectors take what others do not: the prefill worker's will tell.
                why = ""
        else:
            way = choose_way(
                context.scheduler, self._request, splits.options, splits.transfers, context.clock()
            )
            why = way.reason
        self._whole = why
        if not why:
            self._decode.follow_prefill()

    def _begin_prefill(self) -> Target | Problem | Wait | None:
        """Book a prefill and ask for it; return the decode worker only if it is needed beside."""
        wanted = prefill_request(self._request, self._failed)
        self._prefill = prefill = Prefill(self._context, wanted)
        try:
            prefill.book()
        except NoWorkerError:
            self._prefill = None
            return self._without_prefill()
        worker, way = prefill.worker, prefill.way
        if worker is None or way is None or (self._sent.why_whole and not way.many):
            self._end_prefill()
            self._failed |= {prefill.name}
            if way is not None and not self._context.workers.expects_whole():
                self._stay_whole(NOBODY)
                return cannot_split(self._sent.why_whole)
            return self._without_prefill()
        decoder: WorkerHeartbeat | None = None
        if way.beside or "decode-port" in way.needs:
            target = self._decode.next_target()
            if not isinstance(target, Target):
                self._end_prefill()
                return target
            self._held = target
            self._decode.fetch_s = prefill.patience_s + self._fetching_s() if way.beside else inf
            decoder = self._context.router.heartbeats.get(self._decode.worker)
        meeting = meeting_of(worker, decoder, secrets.randbits(63))
        body = way.prefill(self._sent.body, meeting)
        if way.beside:
            return self._meet(way, meeting, body)
        self._start(self._await_prefill(way, meeting, body))
        return WAIT

    def _fetching_s(self) -> float:
        """Return how long the decode worker may take to fetch what was prefilled."""
        moved_ms = self._splits.transfers.predict_ms(moved_tokens(self._decode.chosen))
        return CONTACT_S + SLACK * moved_ms / 1000.0

    def _meet(self, way: Connector, meeting: Meeting, body: bytes) -> Target:
        """Send two workers to meet: the decode worker's answer is the client's."""
        target, self._held = self._held, None
        assert target is not None, "chosen before the prefill was"
        decode = way.decode(self._sent.body, meeting, NO_PARAMS)
        self._start(self._watch_prefill(body))
        return msgspec.structs.replace(target, body=decode)

    def _without_prefill(self) -> Target | Problem | Wait | None:
        """Have a decode worker do it all, if one can; else give up."""
        self._stay_whole(NOBODY)
        target = self._decode.next_target()
        return target if isinstance(target, Target | Wait) else self._lacking(target)

    def _lacking(self, problem: Problem | None) -> Problem | None:
        """Return the error for a request that no worker can serve whole, and no two can share."""
        if self._whole != NOBODY:
            return problem
        if self._sent.why_whole:
            return cannot_split(self._sent.why_whole)
        return NO_PREFILL if self._failed else problem

    async def _await_prefill(self, way: Connector, meeting: Meeting, body: bytes) -> None:
        """Go on with the decode when the prefill is done, or as things stand then."""
        prefill, sent = self._prefill, self._sent
        assert prefill is not None
        assert prefill.worker is not None
        request_id = b"" if way.request_id is None else way.request_id(meeting)
        if request_id:
            sent = sent.called(request_id)
        status, answer = NO_ANSWER, b"its side channel does not tell who it is"
        if way.asks:
            engine_id = await ask_engine_id(self._splits.pool, way, meeting)
            meeting = msgspec.structs.replace(meeting, engine_id=engine_id)
        if not way.asks or meeting.engine_id:
            status, answer = await self._ask(prefill.worker, sent, body)
        params = read_answer(way, status, answer)
        now = self._context.clock()
        if params is not None:
            decode = way.decode(sent.body, meeting, params)
            self._fetch = Fetch(decode, request_id, now, way.lease_s)
            prefill.ends()
        elif status == HTTP_OK or status in CLIENT_ERRORS:
            # It transfers nothing, or the client is at fault: the decode worker will tell.
            self._blame(prefill, status, answer)
            self._stay_whole(FAILED)
        else:
            self._blame(prefill, status, answer)
        self._task = None
        self._end_prefill(failed_attempt("reset", status=status))
        self._forwarding.proceed()

    async def _watch_prefill(self, body: bytes) -> None:
        """Begin anew when a prefill to meet fails: the decode worker would wait in vain."""
        prefill = self._prefill
        assert prefill is not None
        assert prefill.worker is not None
        status, answer = await self._ask(prefill.worker, self._sent, body)
        self._task = None
        if status == HTTP_OK:
            prefill.ends()
        self._end_prefill(failed_attempt("reset", status=status))
        if status == HTTP_OK or status in CLIENT_ERRORS:
            return
        self._blame(prefill, status, answer)
        self._blameless = True
        url = prefill.worker.url
        text = f"{url}: prefill failed with status {status}"
        self._forwarding.fail_attempt(UpstreamFailure("before_send", "refused", text, url))

    async def _ask(self, worker: WorkerHeartbeat, sent: Sent, body: bytes) -> tuple[int, bytes]:
        splits = self._splits
        return await ask_prefill(splits.pool, worker, sent, body, splits.options.timeout_s)

    def _blame(self, prefill: Prefill, status: int, answer: bytes) -> None:
        self._let_go()
        self._failed |= {prefill.name}
        context = self._context
        context.counters.attempts_failed += 1
        context.log.warning(
            "prefill failed",
            worker=prefill.name,
            request_id=self._request.request_id,
            status=status,
            answer=answer[:200].decode(errors="replace"),
        )
        if len(self._failed) > self._splits.options.max_retries:
            self._stay_whole(FAILED)

    def _stay_whole(self, why: str) -> None:
        """Have one worker do all of it from now on."""
        self._let_go()
        self._fetch = None
        self._whole = why
        self._decode.stay_whole()

    def _let_go(self) -> None:
        """Give the decode worker back that was chosen before the prefill was done."""
        if self._held is not None:
            self._held = None
            self._decode.give_back()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        self._task = self._forwarding.scope.start(work)

    def _end_prefill(self, attempt: Attempt = UNKNOWN) -> None:
        """Give the prefill's booking back, and let go of it if it is still on its way."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        if self._prefill is not None:
            self._prefill.give_back(attempt)
