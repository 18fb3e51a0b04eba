"""The index, and the peers it is measured against, behind one set of calls."""

import os
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import Any

import msgspec

from benchmarks.index.workload import Change, Workload
from kvmesh.core.blocks.events import (
    ROOT,
    VERSION,
    Batch,
    Event,
    Removed,
    Stored,
    WorkerId,
    decode_batch,
    encode_batch,
)
from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.snapshot_reading import decode_snapshot
from kvmesh.core.index.snapshot_writing import Position, encode_snapshot

EVENTS_PER_MESSAGE = 8
PEER = "ai-dynamo-runtime 1.6.1"


def find_dynamo() -> ModuleType | str:
    """Return Dynamo's bindings, or why there are none."""
    os.environ.setdefault("DYN_LOG", "error")
    try:
        return import_module("dynamo._core")
    except ImportError as error:
        return f"{PEER} is not installed ({error}): pip install '.[bench]'"


class OurPeer:
    """kvmesh: `KvIndex`, fed with journal messages."""

    def __init__(self, workload: Workload) -> None:
        self.index = KvIndex()
        self._workload = workload
        self.names = [WorkerId(f"worker-{number}") for number in range(workload.workers)]

    def messages(self, changes: Iterable[Change]) -> list[tuple[int, bytes]]:
        """Return journal messages of up to 8 consecutive events of one worker."""
        waiting: dict[int, list[Event]] = {}
        done: list[tuple[int, bytes]] = []
        for change in changes:
            events = waiting.setdefault(change.worker, [])
            events.append(self._event(change))
            if len(events) == EVENTS_PER_MESSAGE:
                done.append(self._message(change.worker, waiting.pop(change.worker)))
        done += [self._message(worker, events) for worker, events in waiting.items()]
        return done

    def _message(self, worker: int, events: list[Event]) -> tuple[int, bytes]:
        return worker, encode_batch(Batch(VERSION, 1, 1, events))

    def _event(self, change: Change) -> Event:
        hashes = self._workload.paths[change.path].hashes
        run = hashes[change.first : change.last]
        if change.stored:
            parent = hashes[change.first - 1] if change.first else ROOT
            return Stored(parent, pack_hashes(run))
        return Removed(pack_hashes(run[::-1]))

    def apply(self, messages: Iterable[tuple[int, bytes]]) -> None:
        """Decode and fold messages."""
        apply, names = self.index.apply, self.names
        for worker, data in messages:
            name = names[worker]
            for event in decode_batch(data).events:
                apply(name, event)

    def dump(self) -> bytes:
        return b"".join(encode_snapshot(self.index.freeze(), Position()))

    def restore(self, data: bytes) -> None:
        snapshot = decode_snapshot(data)
        self.index.load(snapshot.image, snapshot.truncated)


class DynamoPeer:
    """Dynamo's `RadixTree` binding, fed with JSON events, its own wire format."""

    def __init__(self, core: ModuleType, workload: Workload) -> None:
        self._core = core
        self.tree = core.RadixTree()
        self._workload = workload
        self._ids = [0] * workload.workers

    def messages(self, changes: Iterable[Change]) -> list[tuple[int, bytes]]:
        """Return one JSON event a change."""
        return [(change.worker, self._event(change)) for change in changes]

    def _event(self, change: Change) -> bytes:
        path = self._workload.paths[change.path]
        run = path.hashes[change.first : change.last]
        data: dict[str, Any]
        if change.stored:
            pairs = zip(run, path.local[change.first : change.last], strict=True)
            data = {
                "stored": {
                    "parent_hash": path.hashes[change.first - 1] if change.first else None,
                    "blocks": [{"block_hash": seq, "tokens_hash": local} for seq, local in pairs],
                }
            }
        else:
            data = {"removed": {"block_hashes": list(run[::-1])}}
        number = self._ids[change.worker]
        self._ids[change.worker] += 1
        return msgspec.json.encode({"event_id": number, "data": data})

    def apply(self, messages: Iterable[tuple[int, bytes]]) -> None:
        apply = self.tree.apply_event
        for worker, data in messages:
            apply(worker, data)
        self.tree.find_matches([0])

    def dump(self) -> list[str]:
        events: list[str] = self.tree.dump_tree_as_events()
        return events

    def prepared(self, events: Iterable[str]) -> list[tuple[int, bytes]]:
        """Return a dump as a new tree takes it; not part of what is timed."""
        dumped = [msgspec.json.decode(text) for text in events]
        return [(one["worker_id"], msgspec.json.encode(one["event"])) for one in dumped]

    def restore(self, events: Iterable[tuple[int, bytes]]) -> None:
        self.tree = self._core.RadixTree()
        self.apply(events)
