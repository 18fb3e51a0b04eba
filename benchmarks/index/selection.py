"""Tokens -> chosen worker: our scheduler and Dynamo's SelectionService, over the same caches."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import msgspec
import zmq

from benchmarks.index.peers import OurPeer
from benchmarks.index.workload import BLOCK_BYTES, BLOCK_SIZE, Change, Request, Workload
from kvmesh.core.blocks.hashing import BlockHashes, Tokens
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.routing.decision import RouteRequest, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler

READY_TIMEOUT_S = 120.0


class OurSelection:
    """kvmesh's `Scheduler` with Dynamo's cost formula, choosing without booking."""

    def __init__(self, ours: OurPeer) -> None:
        membership = Membership()
        for name in ours.names:
            membership.add(name, 0.0)
        self._scheduler = Scheduler(
            RouterOptions(cost="prefill-decode", block_size=BLOCK_SIZE),
            Random(1),
            membership=membership,
            sequences=new_sequences(BLOCK_SIZE),
            index=ours.index,
        )

    def select_by_list(self, request: Request) -> None:
        self._select(request.tokens, len(request.tokens))

    def select_by_buffer(self, request: Request) -> None:
        self._select(request.packed, len(request.tokens))

    def _select(self, tokens: Tokens, count: int) -> None:
        request = RouteRequest("r", BlockHashes(tokens, BLOCK_SIZE), count)
        # No backlog is below zero: the worker is chosen, nothing is booked.
        self._scheduler.schedule_within(request, 0.0, -1.0)


class DynamoSelection:
    """Dynamo's in-process production core, fed by ZMQ as vLLM would."""

    def __init__(self, core: ModuleType, workload: Workload, folder: Path) -> None:
        self._workload = workload
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._context: zmq.Context[Any] = zmq.Context()
        self._loop.run_until_complete(self._start(core))

    def select(self, request: Request) -> Any:
        return self._loop.run_until_complete(self._select(request))

    def time_ns(self, requests: Iterable[Request]) -> list[int]:
        """Return what each `select` takes, from inside the event loop."""
        return self._loop.run_until_complete(self._time(requests))

    def reserve_ns(self, requests: Iterable[Request]) -> int:
        """Return the processor time in which each is chosen for, booked, prefilled and ended."""
        return self._loop.run_until_complete(self._reserve(requests))

    def close(self) -> None:
        self._service.shutdown()
        self._context.destroy(linger=0)
        self._loop.close()

    async def _start(self, core: ModuleType) -> None:
        self._service = core.SelectionService()
        sockets: list[zmq.Socket[Any]] = []
        for worker in range(self._workload.workers):
            address = f"ipc://{self._folder}/{worker}"
            socket = self._context.socket(zmq.PUB)
            socket.set_hwm(0)
            socket.bind(address)
            sockets.append(socket)
            await self._service.upsert_worker(
                {
                    "worker_id": worker,
                    "model_name": "m",
                    "endpoint": "http://127.0.0.1:1",
                    "block_size": BLOCK_SIZE,
                    "kv_events_endpoint": address,
                    "total_kv_blocks": 1 << 20,
                    "max_num_batched_tokens": 8192,
                }
            )
        await asyncio.sleep(2.0)
        numbers = [0] * len(sockets)
        for change in self._workload.loads:
            event = msgspec.msgpack.encode([time.time(), [self._event(change)], 0])
            number = numbers[change.worker].to_bytes(8, "big")
            sockets[change.worker].send_multipart([b"", number, event])
            numbers[change.worker] += 1
        await self._wait_for(self._workload.loads[-1])

    def _event(self, change: Change) -> list[Any]:
        path = self._workload.paths[change.path]
        data = path.tokens()[change.first * BLOCK_BYTES : change.last * BLOCK_BYTES]
        parent = path.hashes[change.first - 1] if change.first else None
        hashes = list(path.hashes[change.first : change.last])
        tokens = memoryview(data).cast("I").tolist()
        return ["BlockStored", hashes, parent, tokens, BLOCK_SIZE, None]

    async def _wait_for(self, change: Change) -> None:
        """Wait until the last change of the load shows."""
        data = self._workload.paths[change.path].tokens()[: change.last * BLOCK_BYTES]
        prompt = {"model_name": "m", "token_ids": memoryview(data).cast("I").tolist()}
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            await asyncio.sleep(0.5)
            found = await self._service.overlap_scores(prompt)
            depths = {one["worker_id"]: one["device_blocks"] for one in found["workers"]}
            if depths.get(change.worker, 0) >= change.last:
                return
        raise TimeoutError(f"SelectionService did not take the load within {READY_TIMEOUT_S:g} s")

    async def _select(self, request: Request) -> Any:
        return await self._service.select({"model_name": "m", "token_ids": request.tokens})

    async def _reserve(self, requests: Iterable[Request]) -> int:
        service, start = self._service, time.process_time_ns()
        for number, request in enumerate(requests):
            name = f"r{number}"
            asked = {"model_name": "m", "token_ids": request.tokens, "selection_id": name}
            await service.select_and_reserve(asked)
            await service.prefill_complete(name)
            await service.free_reservation(name)
        return time.process_time_ns() - start

    async def _time(self, requests: Iterable[Request]) -> list[int]:
        taken: list[int] = []
        for request in requests:
            start = time.perf_counter_ns()
            await self._select(request)
            taken.append(time.perf_counter_ns() - start)
        return taken


@contextmanager
def dynamo_selection(core: ModuleType, workload: Workload) -> Iterator[DynamoSelection]:
    """Start the service, load it, and stop it at the end."""
    with TemporaryDirectory() as folder:
        selection = DynamoSelection(core, workload, Path(folder))
        try:
            yield selection
        finally:
            selection.close()
