"""Dynamo's standalone indexer: filled over ZMQ as by one vLLM engine, recovered from a peer."""

import os
import random
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import zmq

from benchmarks.index.peers import PEER, find_dynamo
from benchmarks.measure import Sample
from benchmarks.proxy.peers import free_port
from benchmarks.started import Started

BLOCK_SIZE: Final = 16
EVENTS_A_BATCH: Final = 8
SUBSCRIBED_S: Final = 1.0
SLOW_S: Final = 0.002
GAVE_UP: Final = "no reachable peers"


class DynamoIndexer:
    """A live indexer with all blocks, and others that start with it as their peer.

    `missing` says why there is none. The prompts asked for to know that it is ready are the first
    and the last run that were stored.
    """

    def __init__(self, folder: Path, blocks: int, run: int) -> None:
        found = find_dynamo()
        os.environ["DYN_LOG"] = "warn"
        self.missing = found if isinstance(found, str) else ""
        self.name = f"{PEER} indexer"
        self._folder = folder
        self._runs = blocks // run
        self._run = run
        self._tokens = random.Random(2)
        self._last: list[int] = []
        self._live: Started | None = None
        self._bytes_per_block = 0.0

    def prepare(self) -> None:
        """Start the live one and publish all blocks to it."""
        with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
            publisher.set_hwm(0)
            port = publisher.bind_to_random_port("tcp://127.0.0.1")
            self._live = self._start("--workers", f"1=tcp://127.0.0.1:{port}")
            self._live.wait(lambda indexer: indexer.fetch("/health") == b"")
            time.sleep(SUBSCRIBED_S)  # ZMQ tells no publisher of its subscribers
            for seq in range(self._runs // EVENTS_A_BATCH):
                events = [self._event() for _ in range(EVENTS_A_BATCH)]
                payload = msgspec.msgpack.encode([0.0, events, 0])
                publisher.send_multipart([b"", seq.to_bytes(8, "big"), payload])
                time.sleep(SLOW_S)
            self._live.wait(self._knows_last)
        dumped = len(self._live.fetch("/dump"))
        self._bytes_per_block = dumped / (self._runs * self._run)

    def restart(self) -> Sample:
        """Start another one that recovers from the live one."""
        assert self._live is not None
        indexer = self._start("--peers", f"http://127.0.0.1:{self._live.port}")
        ready_s = indexer.wait(lambda one: self._knows_last(one) or GAVE_UP in one.log())
        cpu_s = indexer.cpu_s()
        indexer.kill()
        if GAVE_UP in indexer.log():
            print(f"   {self.name}: after {ready_s:.1f} s it gave its peer up and serves empty")
            return {"stored B/entry": self._bytes_per_block}
        return {"ready s": ready_s, "cpu s": cpu_s, "stored B/entry": self._bytes_per_block}

    def close(self) -> None:
        if self._live is not None:
            self._live.kill()

    def _start(self, *arguments: str) -> Started:
        port = free_port()
        own = ["dynamo.indexer", "--port", str(port), "--block-size", str(BLOCK_SIZE)]
        return Started([*own, *arguments], port, self._folder / f"dynamo-{port}.log")

    def _event(self) -> dict[str, Any]:
        """Return one vLLM `BlockStored` of a run of new blocks."""
        self._last = self._tokens.choices(range(1 << 17), k=self._run * BLOCK_SIZE)
        return {
            "type": "BlockStored",
            "block_hashes": [self._tokens.getrandbits(63) for _ in range(self._run)],
            "parent_block_hash": None,
            "token_ids": self._last,
            "block_size": BLOCK_SIZE,
            "lora_id": None,
            "medium": "GPU",
        }

    def _knows_last(self, indexer: Started) -> bool:
        answer = indexer.ask("/query", {"token_ids": self._last, "model_name": "default"})
        scores = answer.get("scores")  # it answers an error while it knows no such model
        return bool(scores) and max(max(ranks.values()) for ranks in scores.values()) >= self._run
