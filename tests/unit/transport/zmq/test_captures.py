"""Bytes that real engines published, through real sockets: each arrives, as it was sent."""

import asyncio
import json
from pathlib import Path

import pytest

from kvmesh.core.engines.kv_events.cache import EngineCache
from kvmesh.transport.zmq.subscriber import EventSubscription, SubscriptionOptions
from kvmesh_lab.mocker.publisher import EventPublisher, ZmqPublisherOptions

pytestmark = pytest.mark.integration

FIXTURES = Path(__file__).parents[3] / "fixtures" / "engines"
CAPTURES = sorted(path.name for path in FIXTURES.glob("*_live.jsonl"))
FREE = "tcp://127.0.0.1:*"


class Listener:
    def __init__(self, expected: int) -> None:
        self.payloads: list[bytes] = []
        self.done = asyncio.Event()
        self._expected = expected

    def on_batch(self, seq: int, payload: bytes) -> None:
        assert seq == len(self.payloads)
        self.payloads.append(payload)
        if len(self.payloads) == self._expected:
            self.done.set()

    def on_restarted(self) -> None:
        raise AssertionError("restarted")

    def on_lost(self, first: int, last: int) -> None:
        raise AssertionError(f"lost {first}..{last}")

    def on_resumed(self, seq: int) -> None:
        raise AssertionError(seq)

    def on_caught_up(self, last_seq: int) -> None:
        pass

    def on_connection(self, *, connected: bool) -> None:
        pass


@pytest.mark.parametrize("name", CAPTURES)
async def test_a_capture_arrives_byte_for_byte_half_of_it_replayed_half_live(name: str) -> None:
    lines = (FIXTURES / name).read_text().splitlines()
    captured = [bytes.fromhex(json.loads(line)["hex"]) for line in lines]
    topic = json.loads(lines[0])["topic"]
    publisher = EventPublisher(
        ZmqPublisherOptions(endpoint=FREE, replay_endpoint=FREE, topic=topic)
    )
    for payload in captured[: len(captured) // 2]:
        publisher.publish(payload)
    listener = Listener(len(captured))
    options = SubscriptionOptions(publisher.endpoint, publisher.replay_endpoint, topic=topic[:3])
    subscription = EventSubscription(options, listener)
    subscription.start()
    try:
        async with asyncio.timeout(60):
            while len(listener.payloads) < len(captured) // 2:  # noqa: ASYNC110  sockets
                await asyncio.sleep(0.005)
            for payload in captured[len(captured) // 2 :]:
                publisher.publish(payload)
            await listener.done.wait()
    finally:
        subscription.close()
        publisher.close()

    assert listener.payloads == captured


@pytest.mark.parametrize(
    ("name", "most", "at_the_end"),
    [("sglang_0.5.23_live.jsonl", 192, 0), ("vllm_0.32.0_live.jsonl", 65, 3)],
)
def test_a_capture_leads_to_the_blocks_its_engine_held(
    name: str, most: int, at_the_end: int
) -> None:
    cache = EngineCache()
    held: list[int] = []
    for line in (FIXTURES / name).read_text().splitlines():
        cache.take(bytes.fromhex(json.loads(line)["hex"]))
        held.append(cache.statistics().visible_blocks)

    assert (max(held), held[-1]) == (most, at_the_end)
