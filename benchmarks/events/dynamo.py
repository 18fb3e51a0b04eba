"""Dynamo's standalone indexers, which listen to the engine's socket themselves, without a log."""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.events.mesh import (
    BLOCK_SIZE,
    Batch,
    Shape,
    ahead_of_others,
    cpu_us,
    publish,
    until,
)
from benchmarks.measure import Sample
from benchmarks.proxy.peers import free_port
from benchmarks.recovery.bench_sidecar import Engine
from benchmarks.started import Started

DYNAMO_SUBSCRIBED_S: Final = 1.0


async def dynamo_throughput(batches: Sequence[Batch], shape: Shape) -> Sample:
    """The same into two of Dynamo's indexers; asking whether they are done costs them a little."""
    blocks = len(batches) * shape.size()
    question = {"token_ids": batches[-1].last_tokens, "model_name": "default"}
    engine = Engine()
    with contextlib.ExitStack() as stack:
        stack.callback(engine.events.close)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvmesh-bench-"))
        indexers: list[Started] = []
        for number in range(2):
            port = free_port()
            argv = ["dynamo.indexer", "--port", str(port), "--block-size", str(BLOCK_SIZE)]
            argv += ["--workers", f"1={engine.events.endpoint}"]
            indexers.append(Started(argv, port, Path(folder) / f"{number}.log"))
            stack.callback(indexers[-1].kill)
            await asyncio.to_thread(indexers[-1].wait, lambda one: one.fetch("/health") == b"")
        await asyncio.sleep(DYNAMO_SUBSCRIBED_S)  # ZMQ tells no publisher of its subscribers
        pids = [indexer.pid for indexer in indexers]
        with ahead_of_others():
            before, start = cpu_us(pids), time.perf_counter()
            await publish(engine, batches, 0)
            for indexer in indexers:
                await until(partial(knows, indexer, question))
            took_s = time.perf_counter() - start
            spent = cpu_us(pids) - before
    return {
        "blocks/s": blocks / took_s,
        "cpu us/block": spent / blocks,
    }


def knows(indexer: Started, question: object) -> bool:
    return bool(indexer.ask("/query", question).get("scores"))
