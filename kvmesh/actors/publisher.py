"""One worker's sidecar: its engine's batches in, prefix-closed journal messages out."""

from collections.abc import Iterable
from typing import Final

import msgspec

from kvmesh._native import Histogram
from kvmesh.actors.cache_report import CacheReport, engine_lines
from kvmesh.actors.checkpoints import EngineResumed
from kvmesh.actors.engine_messages import (
    CacheEmptied,
    EngineAnswers,
    EngineCaughtUp,
    EngineConnected,
    EngineLoad,
    EngineLost,
    EnginePayload,
    EngineRestarted,
    EngineServes,
    PromptServed,
)
from kvmesh.actors.kernel import Append, Effect, Fields, Log, Message, Publish, Wake
from kvmesh.actors.messages import (
    Appended,
    BusMessage,
    Drain,
    Resync,
    Started,
    Tick,
    WorkerHeartbeat,
    WorkerLoad,
    WriteFormat,
)
from kvmesh.actors.publisher_options import PublisherOptions, PublisherStatistics
from kvmesh.actors.refusals import Refusals
from kvmesh.actors.wire import Subjects, decode_command, encode
from kvmesh.core.blocks.events import Event
from kvmesh.core.blocks.hashing import secret_mark
from kvmesh.core.engines.kv_events.cache import new_engine_cache
from kvmesh.core.engines.kv_events.checkpoint import MOST_BLOCKS, EngineCheckpoint, EngineMark
from kvmesh.core.engines.kv_events.regaining import Regaining
from kvmesh.core.engines.registry import engine_of, needs_naming
from kvmesh.core.journal.event_sender import (
    EventSender,
    Sends,
    is_followable,
)
from kvmesh.core.members.readers import RequestedFormats
from kvmesh.errors import CodecError

KNOWN_AGAIN: Final = "all that is used of the engine's cache is known again"

_commands = msgspec.msgpack.Decoder(Resync | WriteFormat | PromptServed | CacheEmptied)


class Publisher:
    """Publishes what one engine holds, exactly and in order, through every loss on the way.

    Engine batches become prefix-closed events (`EngineCache`), numbered and sent until stored
    (`EventSender`). An engine whose history is lost counts as holding nothing until it starts over;
    its heartbeats say so.
    """

    def __init__(self, options: PublisherOptions, *, name: str = "publisher") -> None:
        self.name = name
        self._options = options
        subjects = Subjects(options.namespace, options.bucket)
        self._events_subject = subjects.events(options.worker)
        self._heartbeats_subject = subjects.heartbeats(options.worker)
        self._cache = new_engine_cache(
            options.block_size,
            secret=options.secret,
            engine=options.engine,
            drops=options.drops,
        )
        self._regaining = Regaining(self._cache, options.secret)
        writes = options.formats.journal
        self._reported = RequestedFormats(writes.oldest, writes.newest)
        self._sender = EventSender(
            options.epoch, self.dump, options.limits, journal_format=writes.oldest
        )
        self._report = CacheReport(options.worker, each_batch=options.log_batches)
        self._load = WorkerLoad()
        self._reading = 0
        self._draining = False
        self._answering = True
        self._flush_set = self._retry_set = self._size_alarmed = False
        self._refusals = Refusals()
        self._remade = self._resyncs = self._resumed = 0
        self._mark = EngineMark()
        self._behind = self._is_resuming = False

    def receive(self, message: Message, now: float) -> Iterable[Effect]:
        """Fold one message; see `messages` for what each means."""
        match message:
            case EnginePayload(data, seq):
                self._mark.move(seq, data)
                return self._on_payload(data, now)
            case Appended(token, sequence):
                return self._on_appended(token, sequence, now)
            case Tick(kind):
                return self._on_tick(kind, now)
            case BusMessage(subject, data):
                return self._on_bus(subject, data, now)
            case Started():
                flush = self._flush(now) if self._options.events else ()
                return (*flush, *self._beat())
            case _:
                return self._on_rare(message, now)

    def heartbeat(self) -> WorkerHeartbeat:
        """Return the worker's present sign of life."""
        options = self._options
        return WorkerHeartbeat(
            worker=options.worker,
            bucket=options.bucket,
            epoch=self._sender.epoch,
            last_seq=self._sender.confirmed_seq(),
            url=options.url,
            models=options.models,
            adapters=options.adapters,
            weights=options.weights or msgspec.UNSET,
            bootstrap_port=options.bootstrap_port,
            connector=options.connector or msgspec.UNSET,
            health_path=options.health_path,
            engine=options.engine if needs_naming(options.engine) else msgspec.UNSET,
            unsalted=engine_of(options.engine).unsalted_paths,
            block_size=self._cache.block_size,
            load=self._load,
            reading=self._reading,
            events=options.events,
            dp_rank=options.dp_rank,
            draining=self._draining or not self._answering,
            answering=self._answering,
            complete=self._cache.complete and not self._is_resuming,
            secret_mark=secret_mark(options.secret),
            labels=options.labels,
            taints=options.taints,
            version=options.version,
            formats=options.formats,
            journal_format=self._sender.journal_format,
            incarnation=options.incarnation,
            catching_up=self._behind,
            engine_seq=self._mark.seq if self._is_savable else msgspec.UNSET,
            wants_answers=self._regaining.wants_answers,
        )

    def checkpoint(self) -> EngineCheckpoint | None:
        """Return what is known of the engine, for the sidecar after this one; None where that is
        not all, or too much. O(blocks).
        """
        saved = self._cache.save() if self._is_savable else None
        if saved is None:
            return None
        mark = secret_mark(self._options.secret)
        return EngineCheckpoint(self._mark.seq, self._mark.digest(), mark, saved)

    @property
    def is_whole(self) -> bool:
        """Return whether nothing is missing of what the engine holds, or will be when what comes
        now has been read.
        """
        return self._cache.complete

    def why_not_from(self, checkpoint: EngineCheckpoint) -> str:
        """Return why that checkpoint can be of no use to this sidecar, "" if it may be."""
        same = checkpoint.secret_mark == secret_mark(self._options.secret)
        return "" if same else "its hashes are of another secret"

    def dump(self) -> list[Event]:
        """Return events that store everything visible, nearest tier first. O(blocks)."""
        return self._cache.dump()

    def statistics(self) -> PublisherStatistics:
        """Return the present counts."""
        return PublisherStatistics(
            garbage=self._refusals.count,
            remade=self._remade,
            sender=self._sender.statistics(),
            cache=self._cache.statistics(),
            resyncs=self._resyncs,
            resumed=self._resumed,
        )

    def publish_seconds(self) -> Histogram:
        """Return how long messages took until the journal had them, seconds."""
        return self._sender.seconds

    def _on_rare(self, message: Message, now: float) -> Iterable[Effect]:
        match message:
            case EngineLoad(load):
                self._load = load
                self._reading += 1
                return ()
            case EngineRestarted():
                self._mark = EngineMark()
                said = self._add(self._regaining.restart())
                return (*said, *self._pace(now))
            case EngineLost(reason):
                return self._on_lost(reason, now)
            case Resync() | WriteFormat() | PromptServed() | CacheEmptied():
                return self._on_command(message, now)
            case Drain() | EngineAnswers() | EngineServes():
                return self._on_service(message)
            case _:
                return self._on_progress(message, now)

    def _on_progress(self, message: Message, now: float) -> Iterable[Effect]:
        """Note whether what is held is what the engine holds now, or did some batches ago."""
        match message:
            case EngineConnected():
                behind = True
            case EngineCaughtUp():
                behind = self._is_resuming = False
            case EngineResumed(checkpoint):
                return self._on_resumed(checkpoint, now)
            case _:
                return ()
        turned, self._behind = behind is not self._behind, behind
        return (self._heartbeat(),) if turned else ()

    def _on_resumed(self, checkpoint: EngineCheckpoint, now: float) -> Iterable[Effect]:
        """Hold what an earlier sidecar knew. It counts when what followed has been read, too."""
        try:
            events = self._regaining.load(checkpoint.saved)
        except CodecError as error:
            return self._on_lost(str(error), now)
        self._resumed += 1
        self._mark = EngineMark(checkpoint.seq, checkpoint.batch)
        self._is_resuming = self._behind = True
        fields: Fields = {"worker": self._options.worker, "batch": checkpoint.seq}
        log = Log("info", "going on from what an earlier sidecar knew of the engine", fields)
        return (log, *self._add(events), *self._pace(now), self._heartbeat())

    def _on_service(self, message: Drain | EngineAnswers | EngineServes) -> Iterable[Effect]:
        """Note whether requests may come, or for which models, and say so at once."""
        if isinstance(message, Drain):
            self._draining = message.draining
        elif isinstance(message, EngineServes):
            models, adapters, weights = message.models, message.adapters, message.weights
            self._options = msgspec.structs.replace(
                self._options, models=models, adapters=adapters, weights=weights
            )
        else:
            self._answering = message.answering
        return (self._heartbeat(),)

    def _on_payload(self, data: bytes, now: float) -> Iterable[Effect]:
        before = self._cache.complete
        effects = self._take(data, now)
        if self._cache.complete == before:
            return effects
        # Until they hear of it routers take it that events tell all, or that they do not.
        fields: Fields = {"worker": self._options.worker}
        said = () if before else (Log("info", KNOWN_AGAIN, fields),)
        return (*effects, *said, self._heartbeat())

    def _take(self, data: bytes, now: float) -> Iterable[Effect]:
        try:
            events = self._regaining.take(data, now, replayed=self._behind)
            lines = self._add(events)
        except CodecError as error:
            return self._on_lost(str(error), now)
        lines += engine_lines(self._options.worker, self._cache, events)
        said, size = self._options.block_size, self._cache.block_size
        if said in (None, size) or self._size_alarmed:
            return (*lines, *self._pace(now)) if lines else self._pace(now)
        self._size_alarmed = True
        log = Log(
            "error",
            "events have another block size than was said, they count",
            {"worker": self._options.worker, "said": said, "events": size},
        )
        return (*lines, log, *self._pace(now))

    def _on_lost(self, reason: str, now: float) -> Iterable[Effect]:
        """Drop the cache's state and publish that until the engine starts over: nothing is better
        than something wrong.
        """
        lines = self._add(self._regaining.lose())
        worker = self._options.worker
        log = Log("error", "engine events lost", {"worker": worker, "reason": reason})
        return (log, *lines, *self._pace(now), self._heartbeat())

    @property
    def _is_savable(self) -> bool:
        known = self._cache.complete and not self._behind and self._mark.seq >= 0
        few = known and self._cache.statistics().residency.blocks <= MOST_BLOCKS
        return few and not self._cache.is_grouped

    def _add(self, events: list[Event]) -> tuple[Log, ...]:
        self._sender.add(events)
        return self._report.count(events)

    def _pace(self, now: float) -> Iterable[Effect]:
        """Send at once when a batch is full or the last is `flush_s` ago, else let a timer do it.

        So an engine's first event after a pause waits for nothing, and a busy one's are batched.
        """
        if self._sender.is_full():
            return self._flush(now)
        if self._flush_set or not self._sender.is_waiting():
            return ()
        early_s = self._flushed_s + self._options.flush_s - now
        if early_s <= 0.0:
            return self._flush(now)
        self._flush_set = True
        return (Wake(early_s, Tick("flush")),)

    def _flush(self, now: float) -> Iterable[Effect]:
        self._flushed_s = now
        return self._append(self._sender.send(now), now)

    def _append(self, sends: Sends, now: float) -> list[Effect]:
        effects: list[Effect] = [Append(self._events_subject, data, token) for token, data in sends]
        due = self._sender.due_s()
        if due is not None and not self._retry_set:
            self._retry_set = True
            effects.append(Wake(max(0.0, due - now), Tick("retry")))
        return effects

    def _on_appended(self, token: int, sequence: int, now: float) -> Iterable[Effect]:
        if not self._sender.acknowledge(token, sequence, now):
            self._remade += 1
            worker = self._options.worker
            log = Log("warning", "journal was remade, dumping again", {"worker": worker})
            return (log, *self._flush(now))
        if self._flush_set or not self._sender.is_waiting():
            return ()
        return self._flush(now)

    def _on_tick(self, kind: str, now: float) -> Iterable[Effect]:
        if kind == "flush":
            self._flush_set = False
            return self._flush(now)
        if kind == "retry":
            self._retry_set = False
            return self._append(self._sender.retry(now), now)
        said = self._report.sum_up(self._load, now)
        regained = self._regaining.settle(now)
        sent = (*self._add(regained), *self._pace(now)) if regained else ()
        return (*sent, *said, *self._beat())

    def _heartbeat(self) -> Effect:
        return Publish(self._heartbeats_subject, encode(self.heartbeat()))

    def _beat(self) -> tuple[Effect, ...]:
        return (self._heartbeat(), Wake(self._options.heartbeat_s, Tick("heartbeat")))

    def _on_bus(self, subject: str, data: bytes, now: float) -> Iterable[Effect]:
        try:
            return self._on_command(decode_command(data, _commands), now)
        except CodecError as error:
            return self._refusals.note(subject, error, now)

    def _on_command(
        self, command: Resync | WriteFormat | PromptServed | CacheEmptied, now: float
    ) -> Iterable[Effect]:
        if command.worker != self._options.worker or not self._options.events:
            return ()
        if isinstance(command, PromptServed):
            self._regaining.served(command.answer(), now)
            return ()
        if isinstance(command, CacheEmptied):
            return (*self._add(self._regaining.restart()), *self._pace(now))
        if isinstance(command, Resync):
            return self._on_resync(command, now)
        return self._on_format(command, now)

    def _on_format(self, reported: WriteFormat, now: float) -> Iterable[Effect]:
        """Write the format that all replicas read. Its heartbeat goes first: they see it coming."""
        sender, before = self._sender, self._sender.journal_format
        number = self._reported.take(reported.router, reported.number, now)
        if number == before:
            return ()
        sender.write(number)
        fields: Fields = {
            "worker": reported.worker,
            "format": number,
            "before": before,
            "told_by": reported.router,
        }
        log = Log("info", "journal format changed", fields)
        return (log, self._heartbeat(), *self._pace(now))

    def _on_resync(self, asked: Resync, now: float) -> Iterable[Effect]:
        """Send what a replica misses, to all of them, through the journal."""
        if asked.incarnation not in (0, self._options.incarnation):
            return ()
        if asked.epoch > self._sender.epoch and not is_followable(asked.epoch):
            why = f"epoch {asked.epoch} has none behind it: replicas have to forget this worker"
            return self._refusals.note(f"resync of {asked.router}", why, now)
        self._resyncs += 1
        before = self._sender.epoch
        sends = self._sender.recover(asked.epoch, asked.next_seq, now)
        raised = () if self._sender.epoch == before else (self._heartbeat(),)
        return (*raised, *self._append(sends, now), *self._pace(now))
