"""Knowing an engine again whose history was lost, without starting it anew."""

from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from kvmesh.core.blocks.events import ROOT, Event, Stored
from kvmesh.core.blocks.hashing import extend_hash, namespace_root, sequence_hashes
from kvmesh.core.engines.engine_events import (
    EngineBatch,
    EngineCleared,
    EngineEvent,
    EngineRemoved,
    EngineStored,
)
from kvmesh.core.engines.kv_events.cache import EngineCache
from kvmesh.core.engines.kv_events.saved_cache import SavedBlock, SavedCache, pack_block

MOST_RUNS: Final = 1024
"""Stored runs that are remembered, the last ones."""

MOST_ANSWERS: Final = 64
"""Answers that wait to be looked at: more that come meanwhile are not, however many a second."""

MOST_HASHES: Final = 4096
"""Blocks of a prompt beyond which an answer is not looked at."""

SETTLE_S: Final = 0.5
"""An answer and the events of its prompt come by different ways: by then the latter have come."""

BEFORE_S: Final = 0.5
"""How much earlier than an answer says its prompt may have been computed."""

PROOF_RUNS: Final = 64
"""So many runs in a row that begin behind a known block show that what is used is known."""

_TOKEN_BYTES: Final = 4


class CacheHit(msgspec.Struct, frozen=True):
    """An answer that came at `at_s`, `lasted_s` after its prompt was sent. Of the prompt's blocks,
    with the content `hashes`, the engine found the first `cached` in its cache.
    """

    hashes: Sequence[int]
    cached: int
    lasted_s: float
    at_s: float = 0.0


class _Run(msgspec.Struct):
    """A stored run; `waits` while its parent is not known."""

    event: EngineStored
    at_s: float
    waits: bool = False


class Regaining:
    """An engine's cache that learns again, after a loss, what the engine held before.

    Nothing is held of what came before a loss, so what is held is always part of what the engine
    holds. What is missing shows: a run stored behind a block that nobody knows, an orphan. Answers
    tell where it belongs. Of a prompt of which k blocks were cached the engine stored one run that
    begins with its block k + 1: if just one run since the prompt was sent begins with those tokens,
    it is that one, and the block before it is the prompt's block k. That block is held from then
    on, and those before it are believed for as long as it is: engines evict a prefix's last block
    first (engines free a request's blocks in reverse, or evict leaves).
    All is known again (`complete`) when `PROOF_RUNS` runs in a row begin behind known blocks; an
    orphan ends that, then and later. Engines of several cache groups are not regained.
    """

    def __init__(self, cache: EngineCache, secret: bytes = b"") -> None:
        self._cache = cache
        self._secret = secret
        self._active = False
        self._runs: deque[_Run] = deque(maxlen=MOST_RUNS)
        self._waiting: dict[int, list[_Run]] = {}
        self._answers: deque[CacheHit] = deque()
        self._placed: dict[int, Sequence[int]] = {}
        self._believed: dict[int, int] = {}
        self._known_runs = 0

    @property
    def wants_answers(self) -> bool:
        """Return whether answers of the engine would help."""
        return self._active and not self._cache.complete

    def take(self, payload: bytes, now: float, *, replayed: bool = False) -> list[Event]:
        """Fold one batch as the engine published it, `replayed` if that was some time ago. Raises
        `CodecError` as the cache does.
        """
        if not self._active or (replayed and not self._runs and not self._placed):
            return self._cache.take(payload)
        batch = self._cache.read(payload)
        if self._cache.is_grouped:
            self._end()
            return self._cache.fold(batch)
        events = self._cache.fold(msgspec.structs.replace(batch, events=()))
        for event in batch.events:
            events += self._take(event, now)
        return events

    def lose(self) -> list[Event]:
        """Take the news that batches are gone."""
        self._end()
        self._active = not self._cache.is_grouped
        return self._cache.lose()

    def restart(self) -> list[Event]:
        """Take the news that the engine began anew."""
        self._end()
        return self._cache.restart()

    def load(self, saved: SavedCache) -> list[Event]:
        """Hold what was saved. Raises `CodecError` as the cache does."""
        self._end()
        return self._cache.load(saved)

    def served(self, answer: CacheHit, now: float) -> None:
        """Take an answer of the engine; `settle` looks at it."""
        if not self.wants_answers or len(self._answers) == MOST_ANSWERS:
            return
        if 0 < answer.cached < len(answer.hashes):
            self._answers.append(msgspec.structs.replace(answer, at_s=now))

    def settle(self, now: float) -> list[Event]:
        """Return what the answers tell whose events must have come by now."""
        events: list[Event] = []
        while self._answers and now >= self._answers[0].at_s + SETTLE_S:
            answer = self._answers.popleft()
            run = self._run_of(answer)
            if run is not None:
                events += self._place(run.event, answer.hashes[: answer.cached])
        return events

    def _end(self) -> None:
        self._active = False
        self._runs.clear()
        self._waiting.clear()
        self._answers.clear()
        self._placed.clear()
        self._believed.clear()
        self._known_runs = 0

    def _take(self, event: EngineEvent, now: float) -> list[Event]:
        alone = EngineBatch(0.0, None, (event,))
        if isinstance(event, EngineStored):
            return self._store(event, alone, now) if event.tokens else self._cache.fold(alone)
        if isinstance(event, EngineCleared):
            self._end()
            return self._cache.fold(alone)
        return [*self._cache.fold(alone), *self._remove(event)]

    def _store(self, event: EngineStored, alone: EngineBatch, now: float) -> list[Event]:
        known = event.parent is None or self._cache.references(event.parent) is not None
        run = _Run(event, now, waits=not known)
        if len(self._runs) == MOST_RUNS:
            self._let_go(self._runs[0])
        self._runs.append(run)
        if event.parent is not None and not known:
            for engine_hash in (event.parent, *event.hashes):
                self._waiting.setdefault(engine_hash, []).append(run)
        events = self._cache.fold(alone)
        if not known:
            self._known_runs = 0
            self._cache.complete = False
        elif any(isinstance(one, Stored) for one in events):
            self._known_runs += 1
            self._cache.complete |= self._known_runs >= PROOF_RUNS
        return events

    def _remove(self, event: EngineRemoved) -> list[Event]:
        """Let runs go that are not whole, and what was believed because of a block that is gone."""
        gone = set(event.hashes)
        for engine_hash in gone & self._waiting.keys():
            for run in tuple(self._waiting.get(engine_hash, ())):
                self._let_go(run)
        doubted: list[int] = []
        for engine_hash in gone & self._placed.keys():
            if not self._cache.references(engine_hash):
                for key in self._placed.pop(engine_hash):
                    self._believed[key] -= 1
                    doubted += [] if self._believed[key] else [key]
        for key in doubted:
            del self._believed[key]
        removed = EngineRemoved(tuple(doubted), 0, self._cache.group or 0)
        return self._cache.fold(EngineBatch(0.0, None, (removed,))) if doubted else []

    def _let_go(self, run: _Run) -> None:
        """Have a run wait no more."""
        if not run.waits:
            return
        run.waits = False
        for engine_hash in {run.event.parent or 0, *run.event.hashes}:
            runs = [one for one in self._waiting.pop(engine_hash, ()) if one.waits]
            if runs:
                self._waiting[engine_hash] = runs

    def _run_of(self, answer: CacheHit) -> _Run | None:
        """Return the run that was stored for a prompt, if it waits and no other can be it."""
        since_s = answer.at_s - answer.lasted_s - BEFORE_S
        runs = self._runs
        if len(runs) == MOST_RUNS and runs[0].at_s >= since_s:
            return None
        parent, first = answer.hashes[answer.cached - 1], answer.hashes[answer.cached]
        fitting = [run for run in runs if run.at_s >= since_s and self._fits(run, parent, first)]
        return fitting[0] if len(fitting) == 1 and fitting[0].waits else None

    def _fits(self, run: _Run, parent: int, first: int) -> bool:
        event, size = run.event, self._cache.block_size
        if event.tier or event.block_size != size:
            return False
        seed = extend_hash(parent, event.extras[0]) if event.extras and event.extras[0] else parent
        return sequence_hashes(event.tokens[: size * _TOKEN_BYTES], size, seed) == [first]

    def _place(self, run: EngineStored, before: Sequence[int]) -> list[Event]:
        """Hold the blocks `before` a run, of which its parent is the last; then what waits there.

        The engine's hashes of blocks before the parent are not known: contents stand for them.
        """
        assert run.parent is not None
        root = namespace_root(lora=run.lora or "", cache_salt=run.salt or "", secret=self._secret)
        keys = [*before[:-1], run.parent]
        blocks = [
            pack_block(SavedBlock(key, parent, root, (content,), (1,)))
            for key, parent, content in zip(keys, (ROOT, *before), before, strict=False)
            if self._cache.references(key) is None
        ]
        self._placed[run.parent] = keys[:-1]
        for key in keys[:-1]:
            self._believed[key] = self._believed.get(key, 0) + 1
        saved = SavedCache(self._cache.group or 0, self._cache.block_size, (0,), b"".join(blocks))
        events = self._cache.add(saved)
        for one in self._runs:
            parent = one.event.parent
            if one.waits and parent is not None and self._cache.references(parent) is not None:
                self._let_go(one)
                events += self._cache.fold(EngineBatch(0.0, None, (one.event,)))
        return events
