"""Follow a stream for ever, from one position, losing and repeating nothing.

The only state is (created, position), kept here and in the reader. Every doubt (missed heartbeats,
a status, a hole in the consumer's numbering, a reconnect) ends in a new consumer at position + 1
after a look at the stream; what the look or a jump of the stream sequence shows to be gone is
reported with its exact range.

A record with a subject that is not the stream's is passed over and counted: a pull whose answers go
to the stream's subject stores others' records under the subject they had.
"""

import asyncio
import contextlib

import msgspec

from kvmesh.errors import TransportError
from kvmesh.observe import get_logger
from kvmesh.ports import Record, StreamState, TailListener
from kvmesh.tasks import end_tasks, supervise
from kvmesh.transport.nats.jetstream.api import JetStream
from kvmesh.transport.nats.jetstream.pull import OPEN_TIMEOUT_S, PullConsumer, PullSpec

WINDOW = 512
RETRY_MIN_S = 0.05
RETRY_MAX_S = 1.0
STABLE_S = 5.0
RECONNECTED = "reconnected"
REGRESS_CONFIRM_S = 2.0
QUIET_STRANGERS = 1000


class TailPlace(msgspec.Struct, frozen=True):
    """A stream, and what the subjects of its own records begin with."""

    stream: str
    prefixes: tuple[str, ...]


class TailStatistics(msgspec.Struct, frozen=True):
    """Counts since `tail` was called. `position` is the last stream sequence delivered."""

    position: int
    records: int
    consumers: int
    failures: int
    gaps: int
    missed_records: int
    recreations: int
    duplicates: int
    strangers: int


class NatsTail:
    """A `Subscription` that delivers one stream to one `TailListener`. Made by `NatsJournal`."""

    def __init__(
        self,
        jetstream: JetStream,
        place: TailPlace,
        after: int,
        created: str,
        listener: TailListener,
    ) -> None:
        stream = place.stream
        self._jetstream = jetstream
        self._prefixes = place.prefixes
        self._stream = stream
        self._position = after
        self._created = created
        self._listener = listener
        self._target: int | None = None
        self._regressed_since_s: float | None = None
        self._broken = asyncio.Event()
        self._reason = self._logged = ""
        self._records = self._consumers = self._failures = self._gaps = 0
        self._missed = self._recreations = self._duplicates = self._strangers = 0
        self._log = get_logger(stream=stream)
        self._forget = jetstream.connection.on_change(self._on_connection)
        self._task = supervise("tail", self._run)

    async def close(self) -> None:
        """Stop delivering; safe to call twice."""
        self._forget()
        await end_tasks(self._task)

    def statistics(self) -> TailStatistics:
        """Return counts for metrics."""
        return TailStatistics(
            position=self._position,
            records=self._records,
            consumers=self._consumers,
            failures=self._failures,
            gaps=self._gaps,
            missed_records=self._missed,
            recreations=self._recreations,
            duplicates=self._duplicates,
            strangers=self._strangers,
        )

    def on_message(self, sequence: int, subject: str, data: bytes, stored_ns: int) -> None:
        """Deliver one message of the present consumer."""
        expected = self._position + 1
        if sequence != expected:
            if sequence < expected:
                self._duplicates += 1
                return
            self._skip_to(sequence)
        # The position first: a listener that fails is told what follows. What it lacks then shows
        # in the worker's own numbers.
        self._position = sequence
        if subject.startswith(self._prefixes):
            self._records += 1
            self._listener.on_record(Record(sequence, subject, data, stored_ns))
        else:
            self._pass_over(subject)
        if self._target is not None:
            self._check_caught_up()

    def _pass_over(self, subject: str) -> None:
        self._strangers += 1
        if self._strangers % QUIET_STRANGERS == 1:
            self._log.warning(
                "record of another subject ignored", subject=subject, count=self._strangers
            )

    def on_idle(self, sequence: int) -> None:
        """Find what was purged behind the last message, where no next one shows the jump."""
        self._skip_to(sequence + 1)
        self._check_caught_up()

    def on_broken(self, reason: str) -> None:
        """Have the consumer replaced."""
        self._reason = reason
        self._broken.set()

    def _on_connection(self, up: bool) -> None:
        if up:
            self.on_broken(RECONNECTED)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        delay_s = RETRY_MIN_S
        while True:
            self._broken.clear()
            started_s = loop.time()
            try:
                consumer = await self._open()
            except TransportError as error:
                self._failures += 1
                if str(error) != self._logged:
                    self._logged = str(error)
                    self._log.warning("tail waits for its stream", error=self._logged)
            else:
                self._logged = ""
                try:
                    await self._broken.wait()
                finally:
                    await consumer.close()
                self._log.info("tail starts over", reason=self._reason, position=self._position)
                # A connection that comes back has waited enough already.
                if self._reason == RECONNECTED or loop.time() - started_s > STABLE_S:
                    delay_s = RETRY_MIN_S
            self._broken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._broken.wait()
            delay_s = min(delay_s * 2, RETRY_MAX_S)

    async def _open(self) -> PullConsumer:
        """Compare the stream with the position, then start a consumer behind it."""
        info = await self._jetstream.stream_info(self._stream, timeout_s=OPEN_TIMEOUT_S)
        state = info.to_state()
        self._check_incarnation(state)
        self._skip_to(state.first_sequence)
        self._target = state.last_sequence
        spec = PullSpec(stream=self._stream, first_sequence=self._position + 1, window=WINDOW)
        consumer = PullConsumer(self._jetstream, spec, self)
        await consumer.open()
        self._consumers += 1
        self._check_caught_up()
        return consumer

    def _check_incarnation(self, state: StreamState) -> None:
        """Notice a remade stream, and one that lost its end: both make the position meaningless.

        A new leader may lag behind what it will show in a moment, so a lost end is believed only
        when it is still lost after 2 s. Raises `TransportError` meanwhile.
        """
        same = self._created in ("", state.created)
        if same and state.last_sequence < self._position:
            now = asyncio.get_running_loop().time()
            if self._regressed_since_s is None:
                self._regressed_since_s = now
            if now - self._regressed_since_s < REGRESS_CONFIRM_S:
                raise TransportError(
                    f"stream {self._stream} ends at {state.last_sequence}, position is "
                    f"{self._position}: waiting for its leader to catch up"
                )
            same = False
        self._regressed_since_s = None
        if not same:
            self._log.warning(
                "stream was remade",
                created=state.created,
                before=self._created,
                lost=self._position,
            )
            self._recreations += 1
            self._position = 0
            self._listener.on_recreated(state)
        self._created = state.created

    def _skip_to(self, sequence: int) -> None:
        """Report the range between the position and `sequence` as gone, if there is one."""
        first = self._position + 1
        if sequence <= first:
            return
        self._gaps += 1
        self._missed += sequence - first
        self._position = sequence - 1
        self._listener.on_gap(first, sequence - 1)

    def _check_caught_up(self) -> None:
        if self._target is not None and self._position >= self._target:
            target, self._target = self._target, None
            self._listener.on_caught_up(target)
